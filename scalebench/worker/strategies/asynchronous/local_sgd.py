"""Local SGD: every rank trains alone, and once in H steps the mean of all models replaces each.

With H = 1 and an optimizer that is linear in the gradient (SGD, with momentum too) this is
synchronous SGD: the mean of the models after a step is the step by the mean of the gradients.
With more it sends 1/H of the bytes, and the models drift apart in between (Stich 2019).

Post-local SGD (Lin et al. 2020) starts as DDP, where drift hurts most, and goes on as local SGD.
Both averagers are torch's own: `PeriodicModelAverager` for the models, and the communication hook
`post_localSGD_hook` for the gradients of the start.

DiLoCo: many local steps, then one step of an outer optimizer on what they changed.

All ranks start a period at the same parameters θ. After H steps rank i is at θ_i. The
pseudogradient is Δ = θ − mean(θ_i), old minus new: it points away from what was learned, as a
gradient does, and the outer optimizer subtracts it. That is SGD with Nesterov's momentum,

    v ← μ·v + Δ,    θ ← θ − η·(Δ + μ·v),

with η = 0.7 and μ = 0.9 in the paper. With η = 1 and μ = 0 the new θ is the mean: local SGD. The
state of the inner optimizers stays on its rank (Douillard et al. 2023, algorithm 1).
"""

import warnings
from typing import Any, cast

import torch
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

from scalebench.spec import DiLoCo, LocalSgd
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies.asynchronous.replica import Replica, mean_over_ranks
from scalebench.worker.strategies.data_parallel import replicated


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


class LocalSgdTraining(Replica):
    """Models that are averaged after every ``period`` steps."""

    def __init__(self, strategy: LocalSgd, workload: Workload, context: RankContext) -> None:
        super().__init__(strategy, workload, context)
        start, period = strategy.synchronous_steps, strategy.period
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="When period is 1")
            # torch's averager would average after the first of each period, and not after the last
            self.averager = PeriodicModelAverager(period, warmup_steps=start + period - 1)
        if start:
            self.module = with_synchronous_start(self.module, start, context.device)

    def after_step(self) -> None:
        """Average the models, if it is the last step of a period."""
        self.averager.average_parameters(self.parameters)
        since = self.num_steps - self.strategy.synchronous_steps
        if since <= 0 or since % self.strategy.period == 0:
            self.count_all_reduce()


def with_synchronous_start(
    module: torch.nn.Module, num_steps: int, device: torch.device
) -> torch.nn.Module:
    """Return the module as one whose first steps average the gradients of all ranks."""
    wrapped = replicated(module, device)
    state = PostLocalSGDState(
        process_group=None,
        subgroup=None,
        start_localSGD_iter=num_steps,
        post_local_gradient_allreduce=False,
    )
    wrapped.register_comm_hook(state, cast(Any, post_localSGD_hook))
    return wrapped
