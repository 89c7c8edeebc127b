"""DiLoCo: many local steps, then one step of an outer optimizer on what they changed.

All ranks start a period at the same parameters θ. After H steps rank i is at θ_i. The
pseudogradient is Δ = θ − mean(θ_i), old minus new: it points away from what was learned, as a
gradient does, and the outer optimizer subtracts it. That is SGD with Nesterov's momentum,

    v ← μ·v + Δ,    θ ← θ − η·(Δ + μ·v),

with η = 0.7 and μ = 0.9 in the paper. With η = 1 and μ = 0 the new θ is the mean: local SGD. The
state of the inner optimizers stays on its rank (Douillard et al. 2023, algorithm 1).
"""

import torch

from scalebench.spec import DiLoCo
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies.asynchronous.replica import Replica, mean_over_ranks


class DiLoCoTraining(Replica):
    """Models that take a common outer step after every ``period`` steps."""

    def __init__(self, strategy: DiLoCo, workload: Workload, context: RankContext) -> None:
        super().__init__(strategy, workload, context)
        self.common = torch.nn.Parameter(self.flat_parameters())
        self.outer = torch.optim.SGD(
            [self.common],
            lr=strategy.outer_rate,
            momentum=strategy.outer_momentum,
            nesterov=strategy.outer_momentum > 0,
        )

    def after_step(self) -> None:
        """Take the outer step, if it is the last step of a period."""
        if self.num_steps % self.strategy.period:
            return
        learned = mean_over_ranks(self.flat_parameters())
        self.count_all_reduce()
        self.common.grad = self.common.detach() - learned
        self.outer.step()
        self.set_parameters(self.common.detach().clone())
