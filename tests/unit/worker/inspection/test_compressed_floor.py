"""Sums of half precision over several ranks: what their rounding is compared with."""

import torch

from scalebench.worker.inspection.compressed import HALF_ROUNDING, floor_of_sums
from scalebench.worker.inspection.deviation import FLOOR, parameter_deviation

RANKS = 4
LARGEST_ROUNDING = HALF_ROUNDING["fp16"] * (RANKS - 2)


def summed(parts: list[torch.Tensor], order: tuple[int, ...]) -> torch.Tensor:
    total = torch.zeros_like(parts[0])
    for rank in order:
        total = total + parts[rank]
    return total


def test_gradients_that_cancel_keep_the_rounding_of_what_they_were():
    generator = torch.Generator().manual_seed(7)
    given = [torch.randn(4096, generator=generator) for _ in range(RANKS - 1)]
    nothing_left = [*given, 0.02 * torch.randn(4096, generator=generator) - sum(given)]
    parts = [part.half() for part in nothing_left]
    one, other = summed(parts, (0, 1, 2, 3)), summed(parts, (3, 1, 0, 2))
    of_all = 10 * float(given[0].norm())
    assert parameter_deviation(one, other, of_all, FLOOR) > LARGEST_ROUNDING
    assert parameter_deviation(one, other, of_all, floor_of_sums("fp16", RANKS)) < LARGEST_ROUNDING
    wrong = one + 0.01 * parts[0]
    assert (
        parameter_deviation(wrong, other, of_all, floor_of_sums("fp16", RANKS)) > LARGEST_ROUNDING
    )


def test_all_else_is_held_to_its_own_size():
    assert floor_of_sums("fp16", 2) == FLOOR  # two summands have one order
    assert floor_of_sums("quantise", RANKS) == FLOOR
