"""Random numbers of a compressed step: reproducible, alike on all ranks or different, as needed."""

from dataclasses import dataclass

import torch

_WORD = 2**64 - 1


@dataclass(frozen=True)
class Draw:
    """Names the random numbers of one bucket of one step on one rank.

    Attributes:
        seed: The run's.
        step: Of the training, from 0.
        bucket: Index of the bucket in the step.
        rank: Whose.
    """

    seed: int
    step: int
    bucket: int
    rank: int

    def shared(self, device: torch.device) -> torch.Generator:
        """Return a generator that is in the same state on every rank."""
        return _generator(device, self.seed, self.step, self.bucket)

    def own(self, device: torch.device) -> torch.Generator:
        """Return a generator of this rank alone: roundings of different ranks are independent."""
        return _generator(device, self.seed, self.step, self.bucket, self.rank + 1)


def _generator(device: torch.device, *numbers: int) -> torch.Generator:
    return torch.Generator(device).manual_seed(_mixed(*numbers))


def _mixed(*numbers: int) -> int:
    """Return 63 bits that depend on every number and on their order.

    Source: Steele, Lea & Flood 2014 (SplitMix), once for each number.
    """
    state = len(numbers)
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & _WORD
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _WORD
        state ^= state >> 31
    return state >> 1
