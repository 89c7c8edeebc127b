"""What a user names as BASE and NEW, and what is known of the two before rows are compared."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from scalebench.gate.fingerprint import environment_mismatches, notable, profile_mismatches
from scalebench.gate.result import SAME_RUN, SUITES, Mismatch
from scalebench.records.baseline import key_of
from scalebench.records.summary import Row, RowKey, Summary


@dataclass(frozen=True)
class Results:
    """What a user named as BASE or NEW: one summary, or the several of a baseline folder.

    Attributes:
        partial: Whether suites that the other side has not run are no loss: of a baseline folder.
        repeats: Further accepted runs of the same suites, which tell how much runs differ.
    """

    name: str
    summaries: tuple[Summary, ...]
    partial: bool = False
    repeats: tuple[Summary, ...] = ()

    @property
    def rows(self) -> list[Row]:
        """All rows."""
        return [row for summary in self.summaries for row in summary.rows]

    def by_key(self) -> dict[RowKey, tuple[Row, Summary]]:
        """Return every row with the summary that it stands in."""
        return {key_of(row): (row, summary) for summary in self.summaries for row in summary.rows}


def decisive_rows(base: Results, new: Results) -> set[RowKey]:
    """Return the rows whose noisy numbers decide: of each case the largest N that both measured."""
    ours, theirs = base.by_key(), new.by_key()
    largest: dict[tuple[str, str], int] = {}
    for key in ours.keys() & theirs.keys():
        if ours[key][0].status == theirs[key][0].status == "ok":
            suite, case, size = key
            largest[suite, case] = max(size, largest.get((suite, case), 0))
    return {(*place, size) for place, size in largest.items()}


def suite_mismatches(base: Results, new: Results, allowed: Collection[str]) -> list[Mismatch]:
    """Return whether the new run lacks whole suites; of a baseline folder that is no loss."""
    ours, theirs = (dict.fromkeys(row.suite for row in side.rows) for side in (base, new))
    if base.partial or ours.keys() <= theirs.keys():
        return []
    return [Mismatch(SUITES, ", ".join(ours), ", ".join(theirs), allowed=SUITES in allowed)]


def mismatches_of(
    base: Summary, new: Sequence[Summary], allowed: Collection[str]
) -> list[Mismatch]:
    """Return what of a summary's environment differs in the new ones and matters."""
    return [
        mismatch
        for theirs in new
        for mismatch in (
            *environment_mismatches(base.environment, theirs.environment, allowed),
            *profile_mismatches(base, theirs, allowed),
        )
    ]


def notes_on(base: Results, new: Results) -> list[str]:
    """Return what the reader has to know of two results before any number."""
    notes = []
    if {s.run_id for s in base.summaries} & {s.run_id for s in new.summaries}:
        notes.append(SAME_RUN)
    for ours in base.summaries:
        for theirs in new.summaries:
            notes += notable(ours.environment, theirs.environment)
            versions = (ours.scalebench_version, theirs.scalebench_version)
            if versions[0] != versions[1]:
                notes.append(f"scalebench was {versions[0]} and is {versions[1]}")
    for side, results in (("baseline", base), ("new run", new)):
        for summary in results.summaries:
            if summary.status != "complete":
                notes.append(f"the {side} is not complete: {summary.status}")
            notes += [f"{side}: {notice}" for notice in summary.damage]
    return list(dict.fromkeys(notes))
