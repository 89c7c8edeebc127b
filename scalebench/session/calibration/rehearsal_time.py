"""How many steps are played where steps are long: what a rehearsal on virtual hosts may take."""

from collections.abc import Sequence
from typing import NamedTuple

LONGEST_S = 20.0
"""At each number of ranks, for the steps of all cases together, without the start of the ranks."""

CHOICES = ((2, 4), (1, 4), (1, 2), (1, 1))
"""Blocks, and steps of a block that count."""


class Length(NamedTuple):
    """What a step is expected to take.

    Attributes:
        computing_s: Without its messages, seconds.
        step_s: With them.
    """

    computing_s: float
    step_s: float

    def played_s(self, blocks: int, num_steps: int) -> float:
        """Return what playing it takes, seconds.

        The computation alone at first, and in each block one step that does not count.
        """
        return self.computing_s + blocks * (1 + num_steps) * self.step_s

    @property
    def least_s(self) -> float:
        """What playing it takes at least."""
        return self.played_s(*CHOICES[-1])


def how_often(
    lengths: Sequence[Length], longest_s: float = LONGEST_S
) -> dict[int, tuple[int, int]]:
    """Return, for each step that is played, its blocks and the steps of each that count.

    The longest steps are left out where even the fewest take too long together. The others share
    the time evenly; what long ones leave over is for shorter ones.

    Args:
        lengths: Of all steps.
        longest_s: What all of it may take, seconds.

    Returns:
        By the number of the step.
    """
    left = sorted(range(len(lengths)), key=lambda number: -lengths[number].least_s)
    while left and sum(lengths[number].least_s for number in left) > longest_s:
        left.pop(0)
    chosen, rest_s = {}, longest_s
    for place, number in enumerate(left):
        share_s = rest_s / (len(left) - place)
        fitting = [c for c in CHOICES if lengths[number].played_s(*c) <= share_s]
        chosen[number] = fitting[0] if fitting else CHOICES[-1]
        rest_s -= lengths[number].played_s(*chosen[number])
    return chosen
