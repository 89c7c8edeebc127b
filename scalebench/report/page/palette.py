"""How a case looks: one colour, dash and marker for each, the same in every figure of a page.

Colours: ten near those of Okabe & Ito 2008 and Paul Tol, moved until each has a contrast of at
least 3 with light and with dark paper, and any two are far apart in normal sight and in three kinds
of colour blindness (ΔE of CIE 1976 of at least 13; simulated as by Machado, Oliveira & Fernandes
2009). A test computes both. Dash and marker differ, too.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from scalebench.records.summary import Row
from scalebench.report.words.wording import CaseKey, case_key, is_baseline

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
