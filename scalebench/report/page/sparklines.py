"""What several runs say in a row, as a table with sparklines: a line for each series."""

from collections.abc import Sequence
from dataclasses import dataclass

from scalebench.gate.history import Trend, trends
from scalebench.records.summary import Summary
from scalebench.report.gate.history import drift_text, smallest_text, values_text
from scalebench.report.gate.table import metric_phrase
from scalebench.report.page.figure_style import Looks
from scalebench.report.words import wording

WIDTH, HEIGHT, MARGIN = 96.0, 24.0, 3.0


@dataclass(frozen=True)
class SparkLine:
    """One series: its curve as SVG points, and its texts.

    Attributes:
        points: ``x,y x,y …`` in a view box of `WIDTH` × `HEIGHT`.
        last: The last point.
    """

    case: str
    color: str
    points: str
    last: tuple[float, float]
    cells: tuple[str, ...]


@dataclass(frozen=True)
class SparkTable:
    """The table.

    Attributes:
        header: Of the cells of each line.
    """

    title: str
    note: str
    header: tuple[str, ...]
    sparks: tuple[SparkLine, ...]
    width: float = WIDTH
    height: float = HEIGHT


def history_table(summaries: Sequence[Summary], looks: Looks) -> SparkTable | None:
    """Return the drift of every series of several runs; None: they have none in common."""
    found = trends(summaries)
    if not found:
        return None
    return SparkTable(
        f"History of {len(summaries)} runs",
        "In order of time. Each curve has its own axis, which noise does not fill. Drift: from the"
        " first run to the last, with the interval that holds for all lines together 95 times in"
        " 100. Smallest findable: the smallest drift for the worse that would be found 95 times in"
        " 100.",
        ("N", "metric", "values", "drift", "smallest findable"),
        tuple(_spark(trend, looks[trend.suite, trend.case].color) for trend in found),
    )


def _spark(trend: Trend, color: str) -> SparkLine:
    low, high = min(trend.values), max(trend.values)
    span = max(high - low, (trend.smallest_drift or 0.0) * low) or 1.0
    last = len(trend.values) - 1
    points = [
        (
            round(MARGIN + (WIDTH - 2 * MARGIN) * place / last, 1),
            round(HEIGHT / 2 - (HEIGHT - 2 * MARGIN) * (value - (low + high) / 2) / span, 1),
        )
        for place, value in enumerate(trend.values)
    ]
    return SparkLine(
        wording.plain(trend.case, 64),
        color,
        " ".join(f"{x},{y}" for x, y in points),
        points[-1],
        (
            str(trend.world_size),
            metric_phrase(trend.metric),
            values_text(trend),
            drift_text(trend),
            smallest_text(trend),
        ),
    )
