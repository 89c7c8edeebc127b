"""Elastic averaging: models tied to a centre by springs, so that they may explore around it.

Before every τ-th step, with x_i the model of rank i, x̃ the centre and β the moving rate,

    x_i ← x_i − β/N · (x_i − x̃),    x̃ ← x̃ + β · (mean(x_i) − x̃),

both from the values before, and x_i then steps by the gradient that it has there before. What the
models lose the centre gains. This is the synchronous form of Zhang et al. 2015 (section 3),
with their β = N·α. Every rank keeps the centre: an all-reduce of the models tells it where
that goes, and no server is needed.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist

from scalebench.spec import ElasticAveraging
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

    def judged_parameters(self) -> torch.Tensor:
        """Return the centre."""
        return self.centre.clone()
