"""Losses of compressed methods side by side: after equal steps, after equal time, to a target.

All methods of a suite train from the same seed on the same batches, so that step k of one is step k
of the other. A single batch's loss is noise: each is the mean of the last few steps. Times are
steps times the clean step: what starting up costs does not count.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from scalebench.records.rows.compression import LossComparison

K = TypeVar("K")

SMOOTHED_STEPS = 5
"""Steps over which a loss is averaged."""


@dataclass(frozen=True)
class LossCurve:
    """One method's training.

    Attributes:
        losses: Of every step from the first, mean over the ranks.
        step_s: The clean step, seconds.
    """

    losses: Sequence[float]
    step_s: float

    def loss_after(self, num_steps: int) -> float:
        """Return the mean loss of the last steps before ``num_steps`` are over."""
        last = self.losses[max(0, num_steps - SMOOTHED_STEPS) : num_steps]
        return sum(last) / len(last)

    def steps_to(self, target: float) -> int | None:
        """Return after how many steps the loss is at most the target; None: not in this run."""
        steps = range(SMOOTHED_STEPS, len(self.losses) + 1)
        return next((k for k in steps if self.loss_after(k) <= target), None)


def compare(curves: Mapping[K, LossCurve], of_none: LossCurve) -> dict[K, LossComparison]:
    """Return what each method's loss came to compared with that of ``none``.

    Args:
        curves: Whatever names a method → its curve; none of them without a step.
        of_none: The exact all-reduce's.
    """
    everyone = [*curves.values(), of_none]
    steps = min(len(curve.losses) for curve in everyone)
    seconds = min(len(curve.losses) * curve.step_s for curve in everyone)
    target = of_none.loss_after(steps)
    told = {}
    for case, curve in curves.items():
        needed, needed_by_none = curve.steps_to(target), of_none.steps_to(target)
        told[case] = LossComparison(
            equal_steps=steps,
            loss_after_steps=curve.loss_after(steps),
            loss_of_none_after_steps=target,
            equal_s=seconds,
            loss_after_s=curve.loss_after(_steps_in(seconds, curve)),
            loss_of_none_after_s=of_none.loss_after(_steps_in(seconds, of_none)),
            target_loss=target,
            steps_to_target=needed,
            time_to_target_s=None if needed is None else needed * curve.step_s,
            time_of_none_to_target_s=(
                None if needed_by_none is None else needed_by_none * of_none.step_s
            ),
        )
    return told


def _steps_in(seconds: float, curve: LossCurve) -> int:
    """Return how many steps a method takes in a time, at least one that there was."""
    return min(len(curve.losses), max(1, int(seconds / curve.step_s + 1e-9)))
