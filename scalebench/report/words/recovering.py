"""Checkpoints in words: which way to save costs training least, and whether the run continued."""

from collections.abc import Sequence

from scalebench import units
from scalebench.records.rows.recovery import RecoveryFigures, SaveFigures
from scalebench.records.summary import Estimate, Row
from scalebench.report.words import wording

Found = tuple[Row, RecoveryFigures]


def recovering(rows: Sequence[Row]) -> list[Found]:
    """Return the rows that were saved and restored, with what came of it."""
    return [(row, row.recovery) for row in rows if row.recovery is not None]


def seconds(estimate: Estimate) -> str:
    """Write a time with its interval."""
    return units.seconds(estimate.value, estimate.half_width)


def headline(rows: Sequence[Row]) -> str | None:
    """Say which way to save is the cheapest at most ranks, and what was restored.

    None: nothing was saved.
    """
    found = [(row, figures) for row, figures in recovering(rows) if figures.saves]
    if not found:
        return None
    most = max(row.world_size for row, _ in found)
    said = [_cheapest(row, figures) for row, figures in found if row.world_size == most]
    return " ".join([*said, restored(rows), *failed(rows)])


def without_costs(rows: Sequence[Row]) -> str | None:
    """Say what was restored, and how long a kill takes, where costs stand beside it.

    None: nothing was saved.
    """
    if not any(figures.saves for _, figures in recovering(rows)):
        return None
    return " ".join([restored(rows), *failed(rows)])


def failed(rows: Sequence[Row]) -> list[str]:
    """Say how long the job needs after a kill, for who starts it again; at most ranks."""
    found = [(row, one) for row, figures in recovering(rows) for one in figures.failures]
    most = max((row.world_size for row, _ in found), default=0)
    kills = [(row, one) for row, one in found if row.world_size == most and one.kind == "kill"]
    said = []
    for case in dict.fromkeys(row.case for row, _ in kills):
        own = [(row, one) for row, one in kills if row.case == case]
        times = [
            f"{seconds(one.restart_s)} under {wording.plain(one.restarted_by, 32)}"
            for _, one in own
        ]
        said.append(
            f"After a kill, {wording.plain(case, 64)} on {wording.ranks(own[0][0])} trains again "
            f"in {wording.joined(times)}."
        )
    return said


def over_the_seam(rows: Sequence[Row]) -> list[str]:
    """Say how far the loss of jobs with fewer ranks for a time is from that without a stop."""
    return [
        f"{wording.plain(row.case, 64)} on {wording.ranks(row)}: no step's loss differs by more "
        f"than {figures.elastic.loss_deviation:.1e} (relative) from that of a run without a stop."
        for row, figures in recovering(rows)
        if figures.elastic is not None and figures.elastic.loss_deviation is not None
    ]


def _cheapest(row: Row, figures: RecoveryFigures) -> str:
    best = figures.cheapest
    assert best is not None, "asked of a row that was saved"
    name = f"{wording.plain(row.case, 64)} on {wording.ranks(row)}"
    others = [one for one in figures.saves if one is not best and not _is_dearer(one, best)]
    doubt = f", {wording.joined([one.method for one in others])} may be as cheap" if others else ""
    return (
        f"{name}: saving {best.method} costs training {seconds(best.cost_s)} a checkpoint{doubt}."
    )


def _is_dearer(one: SaveFigures, best: SaveFigures) -> bool:
    """Whether the intervals of two costs are apart."""
    low, high = one.cost_s.low, best.cost_s.high
    return low is not None and high is not None and low > high


def restored(rows: Sequence[Row]) -> str:
    """Say how many restores brought back every bit; those that did not have failed."""
    found = [one for _, figures in recovering(rows) for one in figures.restores]
    if not found:
        return "Nothing was restored."
    sizes = sum(
        one.saved_world_size != row.world_size
        for row, figures in recovering(rows)
        for one in figures.restores
    )
    other = f", {sizes} of them with another number of ranks" if sizes else ""
    apart = sum(one.continues_equal is False for one in found)
    after = (
        f" After {apart} of them, further steps differ in some bits from those without a stop."
        if apart
        else ""
    )
    return f"All {len(found)} restores brought back every bit{other}.{after}"
