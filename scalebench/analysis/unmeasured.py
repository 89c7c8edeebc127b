"""What makes a run exit with 4: rows that failed, and cases of which nothing was measured."""

from collections.abc import Iterable, Sequence

from scalebench.records.summary import Row
from scalebench.spec import STRATEGIES, Cell, FromFramework

NOT_REACHED = "not run: the run is "
"""Begins the reason of a row that an interruption or ``--budget`` left: ``--resume`` runs it."""


def failed_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that failed or ran out of memory."""
    return [row for row in rows if row.status in ("failed", "oom")]


def unmeasured_cases(rows: Iterable[Row | Cell]) -> list[str]:
    """Return the cases whose rows are all skipped, as ``suite: case``.

    Other frameworks count as one case of their suite: few people have all of them installed.

    Args:
        rows: Of a summary, or of a plan.
    """
    skipped: dict[str, list[bool]] = {}
    for row in rows:
        kind = row.strategy.kind if isinstance(row, Cell) else row.strategy
        strategy = STRATEGIES.get(kind)
        of_others = strategy is not None and issubclass(strategy, FromFramework)
        name = f"{row.suite}: {'other frameworks' if of_others else row.case}"
        skipped.setdefault(name, []).append(_is_skipped(row))
    return [name for name, of_case in skipped.items() if all(of_case)]


def _is_skipped(row: Row | Cell) -> bool:
    if isinstance(row, Cell):
        return row.skip_reason is not None
    return row.status == "skipped" and not (row.reason or "").startswith(NOT_REACHED)
