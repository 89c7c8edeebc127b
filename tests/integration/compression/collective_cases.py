"""What the ranks of `collective_ranks` sum: drawn with a seed, so the same on every rank."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tests.tools.collective_variants import VARIANTS

DTYPES = (
    *(torch.float32, torch.float64, torch.bfloat16),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
)


@dataclass(frozen=True)
class Case:
    """One sum.

    Attributes:
        layout: How the tensor lies in memory: a name of `LAYOUTS`.
        one_work: Let a whole step have one handle, as with NCCL.
        segment_bytes: None: the default.
    """

    seed: int
    variant: str
    length: int
    dtype: torch.dtype = torch.float32
    layout: str = "whole"
    segment_bytes: int | None = None
    accumulate: torch.dtype | None = None
    one_work: bool = False

    def values(self, rank):
        generator = torch.Generator().manual_seed(1000 * self.seed + rank)
        if self.dtype.is_floating_point:
            drawn = torch.randn(self.length, generator=generator, dtype=torch.float64)
            return drawn.to(self.dtype)
        return torch.randint(-9, 10, (self.length,), generator=generator).to(self.dtype)

    def options(self, world_size):
        options = VARIANTS[self.variant].options(world_size)
        if self.segment_bytes:
            options["segment_bytes"] = self.segment_bytes
        return {**options, "accumulate": self.accumulate}


def _every_other(length, dtype):
    memory = torch.zeros(2 * length + 1, dtype=dtype)
    return memory, memory[1::2]


def _transposed(length, dtype):
    rows = max((r for r in range(1, 8) if length % r == 0), default=1)
    memory = torch.zeros(rows, length // rows, dtype=dtype)
    return memory, memory.t()


def _middle(length, dtype):
    memory = torch.zeros(length + 5, dtype=dtype)
    return memory, memory[2 : length + 2]


def _whole(length, dtype):
    memory = torch.zeros(length, dtype=dtype)
    return memory, memory


LAYOUTS: dict[str, Callable[[int, torch.dtype], tuple[torch.Tensor, torch.Tensor]]] = {
    "whole": _whole,
    "middle": _middle,
    "every other": _every_other,
    "transposed": _transposed,
}
"""Returns zeros, and the view of them that is to be summed."""


def cases(world_size):
    dice = random.Random(world_size)
    n = world_size
    for variant in VARIANTS:
        cut = variant != "gather-broadcast"  # which has no segments
        lengths = {0, 1, n - 1, n, n + 1, 31, 1009, dice.randrange(2000)}
        for length in sorted(lengths):
            segment_bytes = dice.choice((32, 100, 4096)) if length < 100 else 512
            layout = dice.choice(list(LAYOUTS))
            seed = dice.randrange(10**6)
            yield Case(
                seed, variant, length, layout=layout, segment_bytes=segment_bytes if cut else None
            )
        for dtype in DTYPES if n < 5 else dice.sample(DTYPES, 3):
            yield Case(dice.randrange(10**6), variant, dice.randrange(1, 500), dtype)
        bfloat16 = (dice.randrange(10**6), variant, 401, torch.bfloat16, "every other")
        yield Case(*bfloat16, accumulate=torch.float32)
        segment_bytes = 128 if cut else None
        yield Case(dice.randrange(10**6), variant, 97, segment_bytes=segment_bytes, one_work=True)
        yield Case(dice.randrange(10**6), variant, 300_001, segment_bytes=1 << 17 if cut else None)
