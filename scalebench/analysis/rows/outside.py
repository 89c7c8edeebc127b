"""What a user's script did between the steps of a row."""

from scalebench.analysis.rows.fields import RowFields
from scalebench.analysis.rows.launches import Launches
from scalebench.records.rank import RankRecord, StepGap
from scalebench.records.rows.outside import LongestGap, OutsideSteps
from scalebench.spec import Script

MOST_NAMED = 3


def outside_of_row(row: Launches) -> RowFields:
    """Return the time between a script's steps, and the marks of a script's row."""
    fields = RowFields()
    if not isinstance(row.cell.strategy, Script):
        fields.set("outside_step", None, "only a script does something else between its steps")
        return fields
    good = list(row.good.values())
    ranks = [rank for result in good for rank in result.ranks]
    if not ranks:
        fields.set("outside_step", None, "no launch of this row succeeded")
        return fields
    early = [rank.ended_after for rank in ranks if rank.ended_after is not None]
    if early:
        fields.stamps.append(f"ended early: after {min(early)} steps")
    if any(rank.gaps is None for rank in ranks):
        fields.set("outside_step", None, "the launch did not record it")
        return fields
    fields.values["outside_step"] = _outside(row)
    return fields


def _outside(row: Launches) -> OutsideSteps:
    found = [
        LongestGap(step=gap.step, rank=rank.rank, repeat=repeat, seconds=gap.seconds)
        for repeat, result in row.good.items()
        for rank in result.ranks
        for gap in _of_clean_window(rank)
    ]
    by_rank: dict[int, float] = {}
    for gap in found:
        by_rank[gap.rank] = by_rank.get(gap.rank, 0.0) + gap.seconds
    longest = max(by_rank, key=by_rank.__getitem__, default=0)
    seconds = by_rank.get(longest, 0.0)
    whole = sum(
        _clean_s(rank) for r in row.good.values() for rank in r.ranks if rank.rank == longest
    )
    return OutsideSteps(
        seconds=seconds,
        share=seconds / whole if whole else 0.0,
        num_gaps=sum(gap.rank == longest for gap in found),
        largest=sorted(found, key=lambda gap: -gap.seconds)[:MOST_NAMED],
    )


def _of_clean_window(rank: RankRecord) -> list[StepGap]:
    steps = _clean(rank)
    return [gap for gap in rank.gaps or () if gap.step in steps]


def _clean(rank: RankRecord) -> set[int]:
    blocks = [block for block in rank.blocks if block.phase == "clean"]
    return {i for b in blocks for i in range(b.first, b.first + b.count)}


def _clean_s(rank: RankRecord) -> float:
    """Return the time from the first clean step to the last, gaps included, seconds."""
    return sum(rank.step_s[i] for i in _clean(rank))
