"""A small piece of computation, of which ranks repeat as many as fit into a time."""

import statistics
import time
from itertools import pairwise

import torch

from scalebench.spec.probes import Rehearsal
from scalebench.worker.process.context import JobContext

TOKENS, WIDTH, INNER_WIDTH = 64, 128, 512
"""Of the piece of computation: the feed-forward part of a small transformer's layer."""

FIRST = 20
"""Pieces that take longer than any other."""

TIMINGS = 50
"""Of the piece of computation, on each rank while the others wait."""


class Piece:
    """A piece of computation that takes about 0.2 ms.

    Attributes:
        piece_s: What it takes on a rank while the others wait, seconds.
    """

    def __init__(self) -> None:
        self.x = torch.randn(TOKENS, WIDTH)
        self.up, self.down = torch.randn(WIDTH, INNER_WIDTH), torch.randn(INNER_WIDTH, WIDTH)
        self.piece_s = 0.0

    def compute(self) -> None:
        """Compute it once."""
        with torch.no_grad():
            inner = torch.nn.functional.gelu(self.x @ self.up)
            torch.nn.functional.layer_norm(self.x + inner @ self.down, (WIDTH,))

    def warm_up(self) -> None:
        """Compute it until it takes as long as it always will."""
        for _ in range(FIRST):
            self.compute()

    def measure(self, context: JobContext[Rehearsal]) -> None:
        """Time it on one rank after the other; what holds for all ranks is the mean."""
        own_s = [0.0] * context.job.world_size
        for rank in range(context.job.world_size):
            if rank == context.rank:
                own_s[rank] = self._alone_s()
            context.barrier()
        self.piece_s = statistics.fmean(context.agree_max(own_s))

    def _alone_s(self) -> float:
        marks = [time.perf_counter()]
        for _ in range(TIMINGS):
            self.compute()
            marks.append(time.perf_counter())
        return statistics.median(after - before for before, after in pairwise(marks))

    def repeat(self, seconds: float) -> float:
        """Compute it as often as fits into ``seconds``; return what is left of them, or was taken.

        At most half a piece either way: a caller that adds it to the next ``seconds`` is right in
        the end.
        """
        times = max(0, round(seconds / self.piece_s))
        for _ in range(times):
            self.compute()
        return seconds - times * self.piece_s
