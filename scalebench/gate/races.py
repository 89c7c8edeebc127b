"""Races in the gate: a target that is no longer reached, and targets that are not the same."""

from scalebench.gate.comparison import Comparison
from scalebench.gate.result import RowVerdict
from scalebench.records.rows.race import RaceFigures

TIME_TO_TARGET = "time_to_target_s"

SAME_TARGET = 0.01
"""Targets that differ by less, as a ratio, are the same: that of a baseline is its own loss, which
differs by rounding."""


def decided_by_race(comparison: Comparison) -> RowVerdict | None:
    """Return the verdict on a time to a target that needs no interval; None: it needs one.

    A time that is not known because the target was not reached is longer than the baseline's: it
    is not missing.
    """
    if comparison.metric.name != TIME_TO_TARGET:
        return None
    was, is_ = comparison.base_row.race, comparison.new_row.race
    if was is None or is_ is None:
        return None
    if abs(is_.target_loss / was.target_loss - 1) > SAME_TARGET:
        reason = (
            f"the targets differ: a loss of {was.target_loss:.4g} and of {is_.target_loss:.4g}; "
            "give both runs the same --target-loss"
        )
        return comparison.verdict("not comparable", reason)
    if _reached(was) and not _reached(is_):
        reason = (
            f"{is_.num_seeds - is_.num_reached} of {is_.num_seeds} seeds no longer reach the target"
        )
        return comparison.verdict("regressed", reason, "single")
    if _reached(is_) and not _reached(was):
        return comparison.verdict("improved", "every seed reaches the target now", "single")
    if not _reached(is_):
        return comparison.verdict("inconclusive", "neither run reaches the target with every seed")
    return None


def _reached(race: RaceFigures) -> bool:
    return race.num_reached == race.num_seeds
