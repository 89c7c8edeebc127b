"""Efficiency as a table with sparklines: one line for each case, a column for each N."""

from collections.abc import Sequence
from dataclasses import dataclass

from scalebench.records.summary import Row
from scalebench.report.page.figure_style import Looks
from scalebench.report.words import wording

WIDTH, HEIGHT, MARGIN = 96.0, 24.0, 3.0


@dataclass(frozen=True)
class SparkLine:
    """One case: its curve as SVG points, and its numbers.

    Attributes:
        points: ``x,y x,y …`` in a view box of `WIDTH` × `HEIGHT`.
        last: The last point.
        cells: One text for each size; a dash where nothing was measured.
    """

    case: str
    color: str
    points: str
    last: tuple[float, float]
    cells: tuple[str, ...]


@dataclass(frozen=True)
class SparkTable:
    """The table; all curves have the same axes, from 0 to 100 %."""

    title: str
    note: str
    sizes: tuple[int, ...]
    sparks: tuple[SparkLine, ...]
    width: float = WIDTH
    height: float = HEIGHT


def spark_table(rows: Sequence[Row], looks: Looks) -> SparkTable | None:
    """Return the table of a suite; None: nothing beyond one rank was measured."""
    known = [row for row in rows if row.efficiency and not wording.is_baseline(row)]
    sizes = tuple(sorted({row.world_size for row in known}))
    if len(sizes) < 2:
        return None
    sparks = [
        _spark(key[1], looks[key].color, group, sizes)
        for key, group in wording.by_case(known).items()
    ]
    marked = any(row.oversubscribed for row in known)
    note = "Efficiency against the plain model, 95 % intervals; curves from 0 to 100 %."
    return SparkTable(
        "Efficiency at a glance",
        note + " ○: oversubscribed." * marked,
        sizes,
        tuple(sparks),
    )


def _spark(case: str, color: str, group: Sequence[Row], sizes: Sequence[int]) -> SparkLine:
    of_size = {row.world_size: row for row in group}
    points = [
        (_x(sizes.index(size), len(sizes)), _y(row.efficiency.value))
        for size, row in of_size.items()
        if row.efficiency
    ]
    return SparkLine(
        wording.plain(case, 64),
        color,
        " ".join(f"{x:.1f},{y:.1f}" for x, y in points),
        points[-1],
        tuple(_cell(of_size.get(size)) for size in sizes),
    )


def _x(place: int, count: int) -> float:
    return round(MARGIN + (WIDTH - 2 * MARGIN) * place / (count - 1), 1)


def _y(efficiency: float) -> float:
    within = min(max(efficiency, 0.0), 1.1) / 1.1
    return round(HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * within, 1)


def _cell(row: Row | None) -> str:
    if row is None or row.efficiency is None:
        return wording.DASH
    return f"{wording.plus_minus(row.efficiency, 100)} %{' ○' * row.oversubscribed}"
