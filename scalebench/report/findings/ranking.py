"""Which case of a suite has the highest efficiency, and which others may be as good."""

from collections.abc import Sequence
from dataclasses import dataclass

from scalebench import units
from scalebench.records.summary import Row
from scalebench.report.tables import compression, races
from scalebench.report.words import wording


@dataclass(frozen=True)
class Ranking:
    """The rated cases at the largest N.

    Attributes:
        rows: Their rows, one for each case; at least one.
        comparable: Whether they ran the same workload and batch in the same kind of place.
    """

    rows: tuple[Row, ...]
    comparable: bool

    @property
    def best(self) -> Row:
        """The row of the highest efficiency."""
        return max(self.rows, key=lambda row: row.efficiency.value if row.efficiency else 0.0)

    @property
    def known(self) -> bool:
        """Whether every efficiency has an interval."""
        return all(_ends(row) is not None for row in self.rows)

    @property
    def rivals(self) -> tuple[Row, ...]:
        """The others whose interval reaches that of the best; without intervals: none is known."""
        floor = _ends(self.best)
        if floor is None:
            return ()
        found = [(row, _ends(row)) for row in self.rows if row is not self.best]
        return tuple(row for row, ends in found if ends is not None and ends[1] >= floor[0])


def rank(headlines: Sequence[Row]) -> Ranking | None:
    """Return the ranking of a suite's cases; None: no case was rated on several ranks.

    Only cases of one workload, one batch and one kind of place are compared, and only those
    whose result is not known to be wrong.
    """
    rated = [
        row
        for row in headlines
        if row.efficiency
        and row.world_size > 1
        and not wording.is_baseline(row)
        and not row.deviates
        and not compression.is_bound(row)
    ]
    if not rated:
        return None
    largest = max(row.world_size for row in rated)
    rows = tuple(row for row in rated if row.world_size == largest)
    kinds = {(row.workload, row.global_batch, row.oversubscribed) for row in rows}
    return Ranking(rows, comparable=len(kinds) == 1)


def best_row(headlines: Sequence[Row]) -> Row | None:
    """Return the row of the case that one would train with; None: none was rated.

    In a race that is the first at its target, else the one of the highest efficiency.
    """
    first = races.first_at_target(headlines)
    if first is not None:
        return first[0]
    ranked = rank(headlines)
    return ranked.best if ranked else None


def sentence(ranking: Ranking | None) -> str | None:
    """Say which case scales best, or that none does; None: nothing to compare."""
    if ranking is None or len(ranking.rows) < 2:
        return None
    if not ranking.comparable:
        return NOT_RANKED
    best, rivals = ranking.best, ranking.rivals
    where = f"on {wording.ranks(best)}"
    if not ranking.known:
        return f"Which case scales best {where} is not known: some have no interval."
    name = wording.plain(best.case, 64)
    slower = _slower_than_one_rank(ranking)
    if not rivals:
        return f"{name} scales best {where}: its interval lies above all others.{slower}"
    if len(rivals) == len(ranking.rows) - 1:
        both = f"{name} and {wording.plain(rivals[0].case, 64)}"
        subject = "The cases" if len(ranking.rows) > 2 else both
        return f"{subject} show no significant difference {where}: their intervals overlap.{slower}"
    return (
        f"{name} has the highest efficiency {where}, but not significantly higher than"
        f" {_names(rivals)}: intervals overlap.{slower}"
    )


LEAST_SAVING = 0.05
"""Peaks of memory closer together than this are called alike."""


def least_memory(ranking: Ranking | None) -> str:
    """Say which case needs the least memory, next to the one of the highest efficiency.

    Returns:
        Empty: there are not several cases, a peak was not counted, or none stands out.
    """
    if ranking is None or len(ranking.rows) < 2 or not ranking.comparable:
        return ""
    peaks = {row.case: row.peak_memory_bytes or 0 for row in ranking.rows}
    if not all(peaks.values()):
        return ""
    case, least = min(peaks.items(), key=lambda item: item[1])
    best = ranking.best.case
    other = max(peaks, key=lambda name: peaks[name]) if case == best else best
    saved = 1 - least / peaks[other]
    if saved < LEAST_SAVING:
        return ""
    return (
        f"Least memory: case {wording.plain(case, 64)}, {units.bytes_(least)} a rank,"
        f" {100 * saved:.0f} % less than {wording.plain(other, 64)}."
    )


def _slower_than_one_rank(ranking: Ranking) -> str:
    """Say that the ranks together train no faster than one plain rank; empty: some case does."""
    reached = [row.speedup for row in ranking.rows]
    if any(one is None or (one.high or one.value) >= 1 for one in reached):
        return ""
    none = "It trains no" if len(reached) == 1 else "None trains"
    return f" {none} faster than plain training on one rank."


NOT_RANKED = "The cases run different workloads or batches: they are not ranked."

MOST_NAMED = 2
"""Rivals that a headline names; of more it says how many."""


def headline(ranking: Ranking | None) -> str:
    """Say in one line which efficiency is the highest, with its interval, and how certain that is.

    The number of ranks stands in the title above it.
    """
    if ranking is None:
        return "No case has an efficiency on several ranks."
    if not ranking.comparable:
        return NOT_RANKED
    best, others = ranking.best, len(ranking.rows) - 1
    assert best.efficiency is not None
    span = wording.interval(best.efficiency, 100)
    reached = f"{wording.point(best.efficiency, 100)} %" + (f" ({span})" if span else "")
    name = wording.plain(best.case, 64)
    slower = _slower_than_one_rank(ranking)
    if not others:
        said = f"Efficiency of {name}: {reached}."
        return (
            f"{said}{slower}"
            if span
            else f"{said} {_without_interval(best)[0].upper()}{_without_interval(best)[1:]}{slower}"
        )
    said = f"Highest efficiency: case {name}, {reached}."
    if not ranking.known:
        return f"{said} Not certain: {_without_interval(best)}{slower}"
    if not ranking.rivals:
        return f"{said} Certain: its interval lies above all others.{slower}"
    many = len(ranking.rivals) > MOST_NAMED
    rivals = f"{len(ranking.rivals)} of {others} others" if many else _names(ranking.rivals)
    return f"{said} Not certain: {rivals} may be as good.{slower}"


def _without_interval(best: Row) -> str:
    one = best.efficiency is not None and best.efficiency.n == 1
    return "one launch gives no interval." if one else "not every case has an interval."


def _names(rows: Sequence[Row]) -> str:
    return wording.joined([wording.plain(row.case, 64) for row in rows])


def _ends(row: Row) -> tuple[float, float] | None:
    return row.efficiency.ends if row.efficiency else None
