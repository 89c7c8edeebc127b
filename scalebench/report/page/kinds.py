"""The kinds of figures that a suite's rows alone are enough for, and their keys."""

import json
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import plotly.graph_objects as go

from scalebench import units
from scalebench.costmodel.scaling_laws import FittedLaw, fit_amdahl, fit_usl
from scalebench.records.summary import Estimate, Row
from scalebench.report.findings import conclusions
from scalebench.report.page import figures
from scalebench.report.page.charts import ChartKind, Choice, Choices, KeyEntry, legend
from scalebench.report.page.figure_style import Looks, safe
from scalebench.report.page.palette import CROSS, DASHES, NEUTRAL
from scalebench.report.tables.layout import CASE, PLACE, RANKS, Column, value
from scalebench.report.words import wording


def _case_key(figure: go.Figure) -> tuple[KeyEntry, ...]:
    entries = list(legend(figure))
    crosses = [
        str(index)
        for index, trace in enumerate(figure.data)
        if trace.marker.symbol == figures.PREDICTION_SYMBOL
    ]
    if crosses:
        entries.append(
            KeyEntry(
                "predicted", NEUTRAL, CROSS, DASHES["dot"], ",".join(crosses), hollow=True,
                meaning="by the cost model",
            )
        )  # fmt: skip
    entries.sort(key=lambda entry: entry.name == figures.HOLLOW)
    return (*entries, *law_key(figure))


def _speedup(rows: Sequence[Row], looks: Looks) -> go.Figure | None:
    figure = figures.speedup_figure(rows, looks)
    if figure is not None:
        drawn = [row for row in rows if row.speedup and not wording.is_baseline(row)]
        figure.add_traces(law_curves(drawn, looks))
    return figure


def _axes(rows: Sequence[Row], figure: go.Figure) -> Choices:
    """Return both kinds of axes, that of the figure first."""
    names = {"linear": "linear", "log–log": "log"}
    order = sorted(names, key=lambda name: names[name] != (figure.layout.xaxis.type or "linear"))
    return Choices(
        "axes",
        tuple(
            Choice(
                name,
                layout=json.dumps(
                    {
                        **{f"{axis}.type": names[name] for axis in ("xaxis", "yaxis")},
                        **{f"{axis}.autorange": True for axis in ("xaxis", "yaxis")},
                    }
                ),
            )
            for name in order
        ),
    )


def _estimates(
    name: str, read: Callable[[Row], Estimate | None], scale: float, unit: str
) -> tuple[Column[Row], ...]:
    def column(header: str, write: Callable[[Estimate], str]) -> Column[Row]:
        return value(header, read, write)

    return (
        CASE,
        RANKS,
        column(name, lambda found: f"{wording.point(found, scale)}{unit}"),
        column("95 % interval", lambda found: wording.interval(found, scale) or "none"),
        column("launches", lambda found: str(found.n)),
        Column("batch all/rank", lambda row: wording.batches(row, "{}/{}")),
    )


SPEEDUP = ChartKind(
    "speedup",
    "Speedup",
    _speedup,
    conclusions.speedup_sentence,
    _estimates("speedup", lambda row: row.speedup, 1.0, wording.TIMES),
    lambda rows: [row for row in rows if row.speedup],
    _case_key,
    absent="Speedup needs a measured size beyond one rank and a plain baseline: --gpus 1,2.",
    choose=_axes,
)
EFFICIENCY = ChartKind(
    "efficiency",
    "Efficiency",
    figures.efficiency_figure,
    conclusions.efficiency_sentence,
    _estimates("efficiency", lambda row: row.efficiency, 100.0, " %"),
    lambda rows: [row for row in rows if row.efficiency],
    _case_key,
    absent="Efficiency needs a measured plain baseline.",
)
STEPS = ChartKind(
    "steps",
    "Step times",
    figures.steps_figure,
    conclusions.steps_sentence,
    (
        *PLACE,
        Column("launch", lambda of: str(of[1].repeat + 1)),
        Column("steps", lambda of: str(len(of[1].step_s))),
        Column("fastest", lambda of: units.seconds(min(of[1].step_s))),
        Column("median", lambda of: units.seconds(median(of[1].step_s))),
        Column("slowest", lambda of: units.seconds(max(of[1].step_s))),
    ),
    lambda rows: [(row, one) for row in rows for one in conclusions.clean_samples(row)],
    absent="No clean step was recorded.",
)


FITS: dict[str, tuple[Callable[..., FittedLaw], str, int, str]] = {
    "Amdahl": (fit_amdahl, "longdash", 1, "a serial part; fitted, no model of the link"),
    "USL": (fit_usl, "longdashdot", 2, "contention and coherency; fitted likewise"),
}
"""Law → its fit, its dash, how many sizes beyond one rank it needs, what it means."""

LAW_DASHES = {"longdash": "10 4", "longdashdot": "10 3 2 3"}
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
                KeyEntry(name, NEUTRAL, "", LAW_DASHES[dash], traces, meaning=meaning, shown=False)
            )
    return entries


def _group(name: str) -> str:
    return f"law/{name}"
