"""Amdahl and USL as curves of the speedup figure: drawn on demand, fitted to what was measured."""

from collections.abc import Callable, Sequence

import numpy as np
import plotly.graph_objects as go

from scalebench.costmodel.scaling_laws import FittedLaw, fit_amdahl, fit_usl
from scalebench.records.summary import Row
from scalebench.report.page.charts import KeyEntry
from scalebench.report.page.figure_style import Looks, safe
from scalebench.report.page.palette import NEUTRAL
from scalebench.report.words import wording

FITS: dict[str, tuple[Callable[..., FittedLaw], str, int, str]] = {
    "Amdahl": (fit_amdahl, "longdash", 1, "a serial part; fitted, no model of the link"),
    "USL": (fit_usl, "longdashdot", 2, "contention and coherency; fitted likewise"),
}
"""Law → its fit, its dash, how many sizes beyond one rank it needs, what it means."""

DASHES = {"longdash": "10 4", "longdashdot": "10 3 2 3"}
POINTS = 30


def law_curves(rows: Sequence[Row], looks: Looks) -> list[go.Scatter]:
    """Return a hidden curve for each case and law that its measured sizes support."""
    curves = []
    for key, group in wording.by_case(rows).items():
        known = {r.world_size: r.speedup.value for r in group if r.speedup and not r.oversubscribed}
        beyond = [n for n in known if n > 1]
        for name, (fit, dash, needed, _) in FITS.items():
            if len(beyond) < needed:
                continue
            law = fit(list(known), list(known.values()))
            x = np.geomspace(1, max(beyond), POINTS)
            told = ", ".join(f"{n} {v:.3g}" for n, v in law.parameters.items())
            curves.append(
                go.Scatter(
                    x=[round(float(n), 4) for n in x],
                    y=[round(float(law.speedup(n)), 5) for n in x],
                    mode="lines",
                    visible=False,
                    legendgroup=_group(name),
                    line={"color": looks[key].color, "dash": dash, "width": 1.4},
                    hovertemplate=f"<b>{safe(key[1], 60)}</b>, {name}: {told}<br>"
                    f"N = %{{x:.3g}}: %{{y:.3g}}{wording.TIMES}<extra></extra>",
                )
            )
    return curves


def law_key(figure: go.Figure) -> list[KeyEntry]:
    """Return the switches of the curves that the figure has."""
    entries = []
    for name, (_, dash, _, meaning) in FITS.items():
        found = [str(i) for i, t in enumerate(figure.data) if t.legendgroup == _group(name)]
        if found:
            traces = ",".join(found)
            entries.append(
                KeyEntry(name, NEUTRAL, "", DASHES[dash], traces, meaning=meaning, shown=False)
            )
    return entries


def _group(name: str) -> str:
    return f"law/{name}"
