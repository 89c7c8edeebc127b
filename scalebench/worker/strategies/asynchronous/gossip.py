"""Gossip over a ring: a rank mixes its model with those of its two neighbours, and no others.

Rank i starts its step from Σ_j W_ij·x_j, where W_ij = 1/3 for itself and both neighbours (1/2 for
two ranks), and applies the gradient that it has at x_i. The models travel while the gradient is
computed, and no rank waits for any but its neighbours (D-PSGD, Lian et al. 2017, algorithm 1).

The mean of all models is kept, because the columns of W sum to one. The distance from it shrinks
in each exchange by the second largest eigenvalue of W, which is close to one in a long ring: news
travels slowly there.

Elastic averaging: models tied to a centre by springs, so that they may explore around it.

Before every τ-th step, with x_i the model of rank i, x̃ the centre and β the moving rate,

    x_i ← x_i − β/N · (x_i − x̃),    x̃ ← x̃ + β · (mean(x_i) − x̃),

both from the values before, and x_i then steps by the gradient that it has there before. What the
models lose the centre gains. This is the synchronous form of Zhang et al. 2015 (section 3),
with their β = N·α. Every rank keeps the centre: an all-reduce of the models tells it where
that goes, and no server is needed.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from scalebench.spec import ElasticAveraging, Gossip
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies.asynchronous.replica import Replica


class ElasticAveragingTraining(Replica):
    """Models that are pulled to a centre before every ``period``-th step; the centre is judged.

    Attributes:
        centre: The same on every rank, shape [Ψ].
    """

    def __init__(
        self, strategy: ElasticAveraging, workload: Workload, context: RankContext
    ) -> None:
        super().__init__(strategy, workload, context)
        self.centre = self.flat_parameters()

    def before_step(self) -> Callable[[], torch.Tensor] | None:
        """Start to sum the models of all ranks, if it is time to."""
        if self.num_steps % self.strategy.period:
            return None
        own = self.flat_parameters()
        total = own.clone()
        summing = dist.all_reduce(total, async_op=True)
        self.count_all_reduce()

        def pulled() -> torch.Tensor:
            summing.wait()
            num_ranks, rate = dist.get_world_size(), self.strategy.moving_rate
            model = own.lerp(self.centre, rate / num_ranks)
            self.centre = self.centre.lerp(total / num_ranks, rate)
            return model

        return pulled

    def evaluated_parameters(self) -> torch.Tensor:
        """Return the centre."""
        return self.centre.clone()


class GossipTraining(Replica):
    """Models that are mixed with those of the neighbours before every ``period``-th step."""

    def __init__(self, strategy: Gossip, workload: Workload, context: RankContext) -> None:
        super().__init__(strategy, workload, context)
        self.neighbours = neighbours(context.rank, context.cell.world_size)
        self.num_ranks = context.cell.world_size

    def facts_of_method(self) -> dict[str, Any]:
        """Return ``contraction``, of the distance from the mean in an exchange."""
        return {"contraction": contraction(self.num_ranks)}

    def before_step(self) -> Callable[[], torch.Tensor] | None:
        """Start to exchange models with the neighbours, if it is time to."""
        if not self.neighbours or self.num_steps % self.strategy.period:
            return None
        own = self.flat_parameters()
        theirs = [torch.empty_like(own) for _ in self.neighbours]
        sends = [dist.P2POp(dist.isend, own, rank) for rank in self.neighbours]
        receives = [
            dist.P2POp(dist.irecv, model, rank)
            for model, rank in zip(theirs, self.neighbours, strict=True)
        ]
        under_way = dist.batch_isend_irecv(sends + receives)
        self.pushed_bytes += len(self.neighbours) * self.num_bytes

        def mixed() -> torch.Tensor:
            for work in under_way:
                work.wait()
            return torch.stack([own, *theirs]).mean(0)

        return mixed


def neighbours(rank: int, num_ranks: int) -> list[int]:
    """Return the ranks next to a rank in a ring: two, or as many as there are others."""
    return sorted({(rank - 1) % num_ranks, (rank + 1) % num_ranks} - {rank})


def contraction(num_ranks: int) -> float:
    """Return by which factor an exchange shrinks the distance of the models from their mean.

    The second largest absolute value of the eigenvalues of W, ``(1 + 2·cos(2πk/N)) / 3`` for a
    ring of three ranks or more. 0: one exchange makes all equal.
    """
    if num_ranks < 3:
        return 0.0
    others = range(1, num_ranks)
    return max(abs(1 + 2 * math.cos(2 * math.pi * k / num_ranks)) / 3 for k in others)
