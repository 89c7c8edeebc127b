"""Every rank keeps the whole model: alone, with all of the optimizer (DDP), or a part of it (ZeRO).

What is divided, and the sources: `scalebench.spec.strategies.data_parallel`. With gradient
accumulation only the last microbatch communicates: the others run under ``no_sync``.
ZeroRedundancyOptimizer gives each parameter to one rank, the largest first to the rank with the
least: whole parameters, so the shares are equal only as far as the sizes allow.

DDP may share the global batch by the ranks' measured speed, which is that of its own computation:
from the step's start to the moment at which its last bucket is ready, which waits for no rank.
After every ``balance_every`` steps the ranks exchange the medians and each works out the same
shares (`scalebench.costmodel.sharding`).

DDP takes the mean over ranks, and the mean over samples is wanted: so a rank's loss is weighted by
its samples, s·N/B, and the result is the gradient of the global batch, however it is shared. A rank
takes its samples from its own batches, in their order; a fast one is through them earlier.
"""

import statistics
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from scalebench.costmodel.sharding import Balance, divided
from scalebench.spec import Cell, Ddp, Plain, Zero1
from scalebench.spec.workload import Workload
from scalebench.worker.portable import step_clock
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies.base import Training
from scalebench.worker.strategies.execution import make_optimizer, prepare_module
from scalebench.worker.workloads.batches import concatenate, map_tensors, num_samples, split


def replicated(
    module: torch.nn.Module, device: torch.device, **options: Any
) -> DistributedDataParallel:
    """Return a module in DDP; its gradients live in the buckets unless options say otherwise."""
    device_ids = [device] if device.type == "cuda" else None
    return DistributedDataParallel(
        module, device_ids=device_ids, **{"gradient_as_bucket_view": True} | options
    )


class PlainTraining(Training):
    """The bare model in one process, no wrapper and no process group: the baseline."""

    def __init__(self, strategy: Plain, workload: Workload, context: RankContext) -> None:
        super().__init__(strategy, workload, context)
        self.module = prepare_module(workload, strategy, context.device)
        self.optimizer = make_optimizer(workload, self.module.parameters())


class Accumulating(Training):
    """A training whose module can hold back the exchange of all microbatches but the last."""

    def microbatches(self, batch: Any) -> list[tuple[Any, float]]:
        """Return the parts of a batch, each with how many such parts the mean is of."""
        parts = self.strategy.accumulate
        return [(one, parts) for one in split(batch, parts)]

    def forward_backward(self, batch: Any, parts: float = 1) -> torch.Tensor:
        """Add the gradient of a batch, in ``accumulate`` microbatches."""
        *held_back, last = self.microbatches(batch)
        with self.module.no_sync() if held_back else nullcontext():
            losses = [super(Accumulating, self).forward_backward(*one) for one in held_back]
        losses.append(super().forward_backward(*last))
        return torch.stack(losses).sum() if held_back else losses[0]


class DdpTraining(Accumulating):
    """The model wrapped in ``DistributedDataParallel``."""

    def __init__(self, strategy: Ddp, workload: Workload, context: RankContext) -> None:
        super().__init__(strategy, workload, context)
        self.module = replicated(
            prepare_module(workload, strategy, context.device),
            context.device,
            bucket_cap_mb=strategy.bucket_mb,
            static_graph=strategy.static_graph,
            gradient_as_bucket_view=strategy.gradient_as_bucket_view,
        )
        self.optimizer = make_optimizer(workload, self.module.parameters())


class Zero1Training(Training):
    """The model wrapped in ``DistributedDataParallel``, its optimizer in ZeRO's."""

    def __init__(self, strategy: Zero1, workload: Workload, context: RankContext) -> None:
        # Imported here: the package compiles scripts, 0.2 s that only a zygote takes once for all.
        from torch.distributed.optim import ZeroRedundancyOptimizer

        super().__init__(strategy, workload, context)
        self.module = replicated(prepare_module(workload, strategy, context.device), context.device)
        make_own: Any = partial(make_optimizer, workload)  # called with the parameters it owns
        self.stepper = ZeroRedundancyOptimizer(
            self.module.parameters(), optimizer_class=make_own, parameters_as_bucket_view=True
        )

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the parameters that this rank owns."""
        own: torch.optim.Optimizer = self.stepper.optim
        return own


WINDOWS_TO_SETTLE = 4
SLOW = 1.7
"""Times longer that a sample takes the last rank, as far as the comparison is concerned."""


def ddp_training(strategy: Ddp, workload: Workload, context: RankContext) -> DdpTraining:
    """Return DDP with equal shares, or with balanced ones."""
    return (BalancedTraining if strategy.balance else DdpTraining)(strategy, workload, context)


def compared_shares(cell: Cell) -> tuple[int, ...] | None:
    """Return the unequal shares with which a balanced strategy is verified; None: equal ones."""
    if not isinstance(cell.strategy, Ddp) or not cell.strategy.balance or cell.world_size == 1:
        return None
    return divided(cell.global_batch, [1.0] * (cell.world_size - 1) + [SLOW])


class Samples:
    """Takes any number of samples at a time from batches."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self.batches = batches
        self.rest: Any = None

    def take(self, count: int) -> Any:
        """Return the next ``count`` samples as one batch."""
        batch = next(self.batches) if self.rest is None else self.rest
        while (there := num_samples(batch)) < count:
            batch = concatenate([batch, next(self.batches)])
        self.rest = None if there == count else _cut(batch, count, there - count)
        return batch if there == count else _cut(batch, 0, count)


def _cut(batch: Any, first: int, count: int) -> Any:
    return map_tensors(lambda t: t.narrow(0, first, count), batch)


class BalancedTraining(DdpTraining):
    """DDP with shares of the global batch that follow the ranks' speed."""

    def __init__(self, strategy: Ddp, workload: Workload, context: RankContext) -> None:
        super().__init__(strategy, workload, context)
        cell = context.cell
        self.context, self.clock = context, step_clock(context.device.type)
        self.equal_share = cell.global_batch / cell.world_size
        self.balance = Balance.equal(cell.global_batch, cell.world_size)
        self.settling_steps = WINDOWS_TO_SETTLE * strategy.balance_every
        self.steps_of_window = self.num_steps = 0
        self.facts = {"shares": [(0, self.balance.shares)]}
        self.shared = context.control is not None and cell.world_size > 1
        if self.shared:
            self.module.register_comm_hook(None, self._bucket_ready)

    def _bucket_ready(self, _: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.is_last():
            self.clock.mark()
        return allreduce_hook(self.module.process_group, bucket)

    def microbatches(self, batch: Any) -> list[tuple[Any, float]]:
        """Return the parts of a share, as equal as whole samples allow, weighted by samples."""
        samples = num_samples(batch)
        parts = min(self.strategy.accumulate, samples)
        ends = [samples * i // parts for i in range(parts + 1)]
        return [(_cut(batch, a, b - a), self.equal_share / (b - a)) for a, b in pairwise(ends)]

    def step(self, batch: Any) -> torch.Tensor:
        """Train on this rank's share, and time its own computation."""
        if self.shared and self.module.require_backward_grad_sync:
            self.steps_of_window += 1
            self.clock.mark()
        self.num_steps += 1
        return super().step(batch)

    def own_batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield this rank's share of every step; set the shares again between steps."""
        samples = Samples(batches)
        while True:
            if self.steps_of_window >= self.strategy.balance_every:
                self._rebalance()
            yield samples.take(self.balance.shares[self.context.rank])

    def _rebalance(self) -> None:
        computing_s = statistics.median(self.clock.resolve()[::2])  # of begin, ready, begin, ...
        pace_s = [0.0] * self.context.cell.world_size
        pace_s[self.context.rank] = computing_s / self.balance.shares[self.context.rank]
        shares = self.balance.shares
        self.balance = self.balance.after(self.context.agree_sum(pace_s))
        self.steps_of_window = 0
        facts = {"pace_s": self.balance.pace_s, **self.facts}  # the first: at equal shares
        if self.balance.shares != shares:
            facts["shares"] = [*self.facts["shares"], (self.num_steps, self.balance.shares)]
        self.facts = facts
