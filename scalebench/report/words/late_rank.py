"""Which rank the others wait for, and which of its own parts makes it late."""

from statistics import median

from scalebench import units
from scalebench.records.rows.communication import Straggler
from scalebench.records.summary import Row
from scalebench.report.words import wording
from scalebench.report.words.attributed import SELDOM, straggler

LEAST_OF_WAIT = 0.25
"""Of what the others wait: a part that explains less is no reason."""

OWN_PARTS = {
    "data_stall_s": "its data loading takes {own} a step, on the others {others}",
    "compute_s": "its computation takes {own} a step, on the others {others}",
    "codec_s": "its encoding takes {own} a step, on the others {others}",
    "other_idle_s": "it is idle {own} a step, the others {others}",
}
"""What a rank does by itself, the surest reason first: how long it computes also depends on what
else the machine does."""


def reasons(row: Row, rank: int) -> list[str]:
    """Say which of a late rank's own parts take longer than the others', the surest first.

    Empty: the traced steps do not show it.
    """
    times = (row.budget.ranks or []) if row.budget is not None else []
    own = next((one for one in times if one.rank == rank), None)
    others = [one for one in times if one.rank != rank]
    if own is None or not others:
        return []
    waited_s = median(one.wait_s for one in others) - own.wait_s
    found = []
    for field, text in OWN_PARTS.items():
        own_s = getattr(own, field) or 0.0
        others_s = median(getattr(one, field) or 0.0 for one in others)
        if waited_s > 0 and own_s - others_s >= LEAST_OF_WAIT * waited_s:
            said = text.format(own=units.seconds(own_s), others=units.seconds(others_s))
            found.append(said)
    return found


def lateness(late: Straggler) -> str:
    """Say to how many operations a rank comes last, and by how much."""
    few = late.share == 1 and late.count < SELDOM
    share = f"all {late.count}" if few else f"{100 * late.share:.0f} % of"
    return f"last in {share} operations, {units.seconds(late.median_late_s)} late"


def held_up(row: Row) -> list[str]:
    """Name the rank that steadily arrives last, and why: ``"Rank 1 is the slow one (last …"``."""
    late = straggler(row)
    if late is None:
        return []
    why = wording.joined(reasons(row, late.rank))
    return [f"Rank {late.rank} is the slow one ({lateness(late)}){f': {why}' if why else ''}."]
