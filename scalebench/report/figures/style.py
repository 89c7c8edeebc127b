"""How figures look: the layout under each, a look for each case, texts that plotly shows.

Colours: ten near those of Okabe & Ito 2008 and Paul Tol, moved until each has a contrast of at
least 3 with light and with dark paper, and any two are far apart in normal sight and in three kinds
of colour blindness (ΔE of CIE 1976 of at least 13; simulated as by Machado, Oliveira & Fernandes
2009). A test computes both. Dash and marker differ, too.
"""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from scalebench.records.summary import Row
from scalebench.report.words import wording
from scalebench.report.words.wording import CaseKey, case_key, is_baseline

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"

LOG_RATIO = 6.0
"""From here on values are drawn on a logarithmic axis."""


def safe(text: object, limit: int = 80) -> str:
    """Return a run's text so that plotly shows it as it is."""
    return html.escape(wording.plain(text, limit)).replace("%{", "%&#123;")


def row_name(row: Row) -> str:
    """Return what a text about a row begins with: its case and its ranks."""
    return f"<b>{safe(row.case, 60)}</b>, {wording.ranks(row)}"


def step_text(row: Row) -> str:
    """Return the row's step time with its interval; a dash: it has none."""
    return wording.seconds(row.step_s) if row.step_s else wording.DASH


def hover(texts: Iterable[str]) -> dict[str, Any]:
    """Return what a trace needs to show these texts on hover, one for each point."""
    data = [[text] for text in texts]
    return {"customdata": data, "hovertemplate": "%{customdata[0]}<extra></extra>"}


def whiskers(
    spans: Iterable[tuple[float, float | None, float | None]],
    color: str,
    px: float,
    width: int,
    scale: float = 1.0,
) -> dict[str, Any]:
    """Return error bars; a missing end is the value.

    ``spans``: value, low and high of each point. ``px`` is the thickness, ``width`` that of the
    ends; ``scale`` multiplies the values for the axis.
    """
    found = [(v, v if a is None else a, v if b is None else b) for v, a, b in spans]
    return {
        "type": "data", "symmetric": False, "thickness": px, "width": width, "color": color,
        "array": [(high - value) * scale for value, _, high in found],
        "arrayminus": [(value - low) * scale for value, low, _ in found],
    }  # fmt: skip


HATCHES: dict[str, Any] = {
    "fgcolor": "#3c4650", "fgopacity": 0.55, "size": 6, "solidity": 0.18, "fillmode": "overlay",
}  # fmt: skip
"""How the hatched bars of what is not certain look."""


def reference_line(
    x: Sequence[float], y: Sequence[float], name: str | None = None, width: float = 1.2
) -> go.Scatter:
    """Return a grey dotted line to compare with; ``width`` in pixels."""
    line = {"color": NEUTRAL, "width": width, "dash": "dot"}
    return go.Scatter(x=x, y=y, mode="lines", name=name, line=line, hoverinfo="skip")


AXIS: dict[str, Any] = {
    "gridcolor": "#e4e7eb",
    "zeroline": False,
    "linecolor": "rgba(128,136,144,0.6)",
    "tickfont": {"size": 13},
}
LAYOUT: dict[str, Any] = {
    "font": {"family": FONT, "size": 13, "color": "#5b6570"},
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "margin": {"l": 12, "r": 12, "t": 34, "b": 48},
    "dragmode": False,
    "showlegend": False,
    "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "#808890", "activecolor": "#0072B2"},
    "hoverlabel": {
        "bgcolor": "#1d242c",
        "bordercolor": "#1d242c",
        "align": "left",
        "font": {"color": "#f2f4f6", "size": 13, "family": FONT},
    },
}
"""What all figures have in common. It is put below each figure's own layout as plain data: to have
plotly check it again for every figure would take most of a page's time."""


def style(figure: go.Figure, name: str, **layout: Any) -> None:
    """Give a figure its layout, the usual height where it has none.

    ``name`` tells the page's scripts which it is; ``layout``: plotly's, by its names.
    """
    figure.update_layout(**{"meta": {"figure": name}, "height": 400} | layout)


def lane_axis(
    figure: go.Figure, ticks: Sequence[tuple[float, str]], bottom: float, top: float = 0.0
) -> None:
    """Write next to its lanes what each tick is, from the top to the bottom."""
    figure.update_yaxes(
        tickvals=[place for place, _ in ticks],
        ticktext=[text for _, text in ticks],
        range=[bottom, top],
        showgrid=False,
        automargin=True,
    )


def wide_axis(values: Sequence[float]) -> dict[str, Any]:
    """Return the kind of an axis: logarithmic where the values along it differ by much."""
    known = [value for value in values if value > 0]
    ratio = max(known) / min(known) if known and len(known) == len(values) else 1.0
    if ratio < LOG_RATIO:
        return {"type": "linear"}
    decades = range(math.floor(math.log10(min(known))), math.ceil(math.log10(max(known))) + 1)
    digits = (1, 1.5, 2, 3, 5, 7) if ratio < 30 else (1, 2, 5) if ratio < 300 else (1,)
    ticks = [digit * 10.0**decade for decade in decades for digit in digits]
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}


def with_style(layout: Mapping[str, Any]) -> dict[str, Any]:
    """Return a figure's layout, as plotly writes it, on top of what all figures have in common."""
    styled = _merged(LAYOUT, layout)
    for name in {"xaxis", "yaxis", *(key for key in styled if key[1:5] == "axis")}:
        styled[name] = _merged(AXIS, styled.get(name, {}))
    return styled


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(below)
    for name, value in above.items():
        under = both.get(name)
        if isinstance(value, Mapping) and isinstance(under, Mapping):
            both[name] = _merged(under, value)
        else:
            both[name] = value
    return both


COLORS = (
    *("#006BAA", "#AE4209", "#09AA70", "#B68D12", "#4393E7"),
    *("#AB7BB0", "#7952D5", "#BE6350", "#9C9743", "#007D18"),
)
NEUTRAL = "#808890"
PALE = 0.16
"""Opacity of an interval's band."""

PALER = 0.5
"""Opacity of what stands behind something else, such as an earlier run."""

PART_COLORS = {
    "compute_inflation": "#EE8866",
    "exposed_transfer": "#77AADD",
    "wait": "#FFAABB",
    "bubble": "#BBCC33",
    "codec": "#44BB99",
    "copies": "#99DDFF",
    "data_stall": "#EEDD88",
    "other_idle": "#AAAA00",
    "residual": "#DDDDDD",
}
"""Of the parts of a loss budget: Paul Tol's light scheme, made for areas and for every sight."""

CATEGORY_COLORS = {
    "parameters": "#77AADD",
    "gradients": "#EE8866",
    "optimizer": "#EEDD88",
    "communication": "#FFAABB",
    "data": "#BBCC33",
    "activations": "#44BB99",
}
"""Of the categories of memory: the same scheme."""

DASHES = {"solid": "", "dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3"}
"""plotly's name of a dash, and the same as an SVG dash array for the key."""

SYMBOLS = {
    "circle": "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0Z",
    "square": "M-3.6,-3.6H3.6V3.6H-3.6Z",
    "diamond": "M0,-5L5,0L0,5L-5,0Z",
    "triangle-up": "M0,-5L4.6,3.4H-4.6Z",
    "triangle-down": "M0,5L4.6,-3.4H-4.6Z",
    "pentagon": "M0,-4.8L4.6,-1.5L2.8,3.9H-2.8L-4.6,-1.5Z",
    "hexagon": "M4.2,-2.4V2.4L0,4.8L-4.2,2.4V-2.4L0,-4.8Z",
}
"""plotly's name of a marker, and the same as an SVG path for the key."""


CROSS = "M-4,-4L4,4M-4,4L4,-4"
"""A prediction's sample in a key, as an SVG path."""

AREA = "M-8,-5H8V5H-8Z"
"""An area's sample in a key, as an SVG path."""


@dataclass(frozen=True)
class Look:
    """Colour, dash and marker of one case; dash and marker by plotly's names."""

    color: str
    dash: str
    symbol: str

    @property
    def hollow(self) -> str:
        """The marker drawn as an outline, by plotly's name."""
        return f"{self.symbol}-open"


Looks = Mapping[CaseKey, Look]
BASELINE = Look(NEUTRAL, "dot", "circle")


def assign(rows: Iterable[Row]) -> dict[CaseKey, Look]:
    """Give each case its look; the baseline is grey.

    A case of the same name looks the same in every suite. Within a suite no colour comes twice as
    long as there are enough of them; over all suites no two cases look alike.
    """
    cases: dict[str, list[CaseKey]] = {}
    looks: dict[CaseKey, Look] = {}
    for row in rows:
        key = case_key(row)
        if is_baseline(row):
            looks[key] = BASELINE
        elif key not in cases.setdefault(row.case, []):
            cases[row.case].append(key)
    taken: dict[str, set[str]] = {}
    free = list(range(len(cases) + len(COLORS)))
    for keys in cases.values():
        used = set().union(*(taken.setdefault(suite, set()) for suite, _ in keys))
        index = next((i for i in free if _look(i).color not in used), free[0])
        free.remove(index)
        for key in keys:
            looks[key] = _look(index)
            taken[key[0]].add(_look(index).color)
    return looks


def _look(index: int) -> Look:
    dashes, symbols = list(DASHES), list(SYMBOLS)
    round_ = index // len(COLORS)
    return Look(
        COLORS[index % len(COLORS)],
        dashes[(index + round_) % len(dashes)],
        symbols[index % len(symbols)],
    )
