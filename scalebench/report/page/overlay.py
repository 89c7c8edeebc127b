"""Two runs in one figure: each case as it was before, paler, beside what it is now."""

from collections.abc import Sequence
from dataclasses import replace

from scalebench.records.summary import Row
from scalebench.report.page import kinds
from scalebench.report.page.charts import Chart, ChartKind, make_chart
from scalebench.report.page.figure_style import Looks
from scalebench.report.page.palette import paler
from scalebench.report.words import wording

BEFORE = "before"

KINDS = (
    *(kinds.SPEEDUP, kinds.EFFICIENCY, kinds.BUDGET, kinds.PREDICTED_STEPS),
    *(kinds.STEPS, kinds.MEMORY),
)
"""The figures that are drawn from rows alone, and so from the rows of two runs together."""

NOTE = f"Paler, and named {BEFORE}: the first run."


def overlays(chart_id: str, pairs: Sequence[tuple[Row, Row]], looks: Looks) -> tuple[Chart, ...]:
    """Draw the figures of a suite with the rows of two runs; those with nothing are left out.

    Args:
        chart_id: What the figures' identifiers begin with.
        pairs: Each row before and after, of one suite.
        looks: Of the cases of both runs.
    """
    before = [row.model_copy(update={"case": f"{row.case} {BEFORE}"}) for row, _ in pairs]
    now = [row for _, row in pairs]
    behind = {
        wording.case_key(was): paler(looks[wording.case_key(is_)])
        for was, is_ in zip(before, now, strict=True)
    }
    both = behind | dict(looks)
    rows = _beside(before, now)
    made = (
        make_chart(_overlaid(kind, now), f"{chart_id}-{kind.name}", rows, both)
        for kind in KINDS
        if kind.draw(now, looks) is not None
    )
    return tuple(chart for chart in made if chart is not None)


def _overlaid(kind: ChartKind, now: Sequence[Row]) -> ChartKind:
    """Return the kind with a sentence on the second run alone."""
    note = f"{NOTE} {kind.note}".strip()
    return replace(kind, conclude=lambda _: kind.conclude(now), note=note)


def _beside(before: Sequence[Row], now: Sequence[Row]) -> list[Row]:
    """Return all rows, those of a case before in front of those of the same case now."""
    grouped = zip(wording.by_case(before).values(), wording.by_case(now).values(), strict=True)
    return [row for groups in grouped for group in groups for row in group]
