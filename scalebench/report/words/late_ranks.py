"""Ranks that hold the others up, in sentences: who arrives last, how late, and why."""

from statistics import median

from scalebench import units
from scalebench.records.rows.communication import Straggler
from scalebench.records.summary import Row
from scalebench.report.words import wording
from scalebench.report.words.warnings import marks

LATE = 0.01
"""Of the step: arrivals that differ by less make no difference to the answer."""

SELDOM = 10
"""Operations below which a rank that is hardly late cannot be said to come last always."""

VERY_LATE = 0.1
"""Of the step: so late, a few operations are enough if the rank comes last to all of them."""

FEW = 4
"""Operations below which no rank is named."""


def arrivals(row: Row) -> list[Straggler]:
    """Return who came last how often, the most frequent first; of one rank alone: nothing."""
    return list(row.stragglers or ()) if row.world_size > 1 else []


def straggler(row: Row) -> Straggler | None:
    """Return the rank that holds the others up; None where no rank does so steadily.

    It comes last in more than 60 % of the operations and half as often again as chance would have
    it, by more than 1 % of a step. No test of significance: arrivals of one step depend on one
    another. Of fewer than ten operations it has to come last to all, by more than 10 % of a step.
    """
    found = arrivals(row)
    num_operations = sum(other.count for other in found)
    if not found or row.step_s is None or num_operations < FEW:
        return None
    first = found[0]
    if num_operations < SELDOM:
        always = first.share == 1 and first.median_late_s > VERY_LATE * row.step_s.value
        return first if always else None
    enough = num_operations >= 2 * SELDOM or first.share >= 0.9
    often = enough and first.share > 0.6 and first.stands_out(row.world_size)
    late = first.median_late_s > LATE * row.step_s.value
    return first if often and late else None


LEAST_OF_WAIT = 0.25
"""Of what the others wait: a part that explains less is no reason."""

OWN_PARTS = {
    "data_stall_s": "its data loading takes {own} a step, on the others {others}",
    "compute_s": "its computation takes {own} a step, on the others {others}",
    "codec_s": "its encoding takes {own} a step, on the others {others}",
    "other_idle_s": "it does nothing that PyTorch sees {own} a step, the others {others}",
}
"""What a rank does by itself, the surest reason first: how long it computes also depends on what
else the machine does."""


def action(rank: int, part: str) -> str:
    """Say what to look at in a late rank, given the part of it that takes longer."""
    if part == "data_stall_s":
        return f"Look at the loader of rank {rank}"
    if part in ("other_idle_s", "lateness_s"):
        return f"See what rank {rank} does (py-spy dump or record)"
    return f"Look at rank {rank}"


def reasons(row: Row, rank: int) -> dict[str, str]:
    """Say which of a late rank's own parts take longer than the others', the surest first.

    Empty: the traced steps do not show it.
    """
    times = (row.budget.ranks or []) if row.budget is not None else []
    own = next((one for one in times if one.rank == rank), None)
    others = [one for one in times if one.rank != rank]
    if own is None or not others:
        return {}
    waited_s = median(one.wait_s for one in others) - own.wait_s
    found = {}
    for field, text in OWN_PARTS.items():
        own_s = getattr(own, field) or 0.0
        others_s = median(getattr(one, field) or 0.0 for one in others)
        if waited_s > 0 and own_s - others_s >= LEAST_OF_WAIT * waited_s:
            said = text.format(own=units.seconds(own_s), others=units.seconds(others_s))
            found[field] = said
    return found


def lateness(late: Straggler) -> str:
    """Say to how many operations a rank comes last, and by how much."""
    few = late.share == 1 and late.count < SELDOM
    share = f"all {late.count}" if few else f"{100 * late.share:.0f} % of"
    return f"last to enter {share} operations, {units.seconds(late.median_late_s)} late"


def held_up(row: Row) -> list[str]:
    """Name the rank that steadily arrives last, and why: ``"Rank 1 is the slow one (last …"``."""
    late = straggler(row)
    if late is None or "foreign load" in marks(row):  # which makes any rank late
        return []
    why = wording.joined(list(reasons(row, late.rank).values()))
    return [f"Rank {late.rank} is the slow one ({lateness(late)}){f': {why}' if why else ''}."]
