"""A model of a rank's own, trained by itself; a method says when, and what, ranks exchange.

Local SGD: once in H steps the mean of all models replaces each. With H = 1 and an optimizer that is
linear in the gradient (SGD, with momentum too) this is synchronous SGD: the mean of the models
after a step is the step by the mean of the gradients. With more it sends 1/H of the bytes, and the
models drift apart in between (Stich 2019).

Post-local SGD (Lin et al. 2020) starts as DDP, where drift hurts most, and goes on as local SGD.
Both averagers are torch's own: `PeriodicModelAverager` for the models, and the communication hook
`post_localSGD_hook` for the gradients of the start.

DiLoCo: all ranks start a period at the same parameters θ. After H steps rank i is at θ_i. The
pseudogradient is Δ = θ − mean(θ_i), old minus new: it points away from what was learned, as a
gradient does, and the outer optimizer subtracts it. That is SGD with Nesterov's momentum,

    v ← μ·v + Δ,    θ ← θ − η·(Δ + μ·v),

with η = 0.7 and μ = 0.9 in the paper. With η = 1 and μ = 0 the new θ is the mean: local SGD. The
state of the inner optimizers stays on its rank (Douillard et al. 2023, algorithm 1).

Gossip over a ring: rank i starts its step from Σ_j W_ij·x_j, where W_ij = 1/3 for itself and both
neighbours (1/2 for two ranks), and applies the gradient that it has at x_i. The models travel while
the gradient is computed, and no rank waits for any but its neighbours (D-PSGD, Lian et al. 2017,
algorithm 1).

The mean of all models is kept, because the columns of W sum to one. The distance from it shrinks
in each exchange by the second largest eigenvalue of W, which is close to one in a long ring: news
travels slowly there.

Elastic averaging: before every τ-th step, with x_i the model of rank i, x̃ the centre and β the
moving rate,

    x_i ← x_i − β/N · (x_i − x̃),    x̃ ← x̃ + β · (mean(x_i) − x̃),

both from the values before, and x_i then steps by the gradient that it has there before. What the
models lose the centre gains. This is the synchronous form of Zhang et al. 2015 (section 3),
with their β = N·α. Every rank keeps the centre: an all-reduce of the models tells it where
that goes, and no server is needed.
"""

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from scalebench.spec import DiLoCo, ElasticAveraging, Execution, Gossip, LocalSgd
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies.base import Training
from scalebench.worker.strategies.data_parallel import replicated
from scalebench.worker.strategies.execution import make_optimizer, prepare_module


class Replica(Training):
    """A rank's own model and optimizer; all ranks start with the same parameters.

    A method overrides `before_step` or `after_step`, where its ranks exchange, and
    `evaluated_parameters`, if it is not the mean of all models that it is judged by. The
    optimizer's state stays on its rank.

    Attributes:
        exchange_s: Seconds from the start of an exchange until this rank has its result.
        pushed_bytes: That this rank has sent in its steps, ring-equivalent.
    """

    def __init__(self, strategy: Execution, workload: Workload, context: RankContext) -> None:
        super().__init__(strategy, workload, context)
        self.module = prepare_module(workload, strategy, context.device)
        self.parameters: Sequence[torch.nn.Parameter] = list(self.module.parameters())
        self.optimizer = make_optimizer(workload, self.parameters)
        self.num_steps = 0
        self.num_batches = 0
        self.exchange_s = 0.0
        self.pushed_bytes = 0.0

    def step(self, batch: Any) -> torch.Tensor:
        """Train this rank's model on its batch; exchange with other ranks if it is time to."""
        with self.exchanging():
            self.exchanged = self.before_step()
        loss = super().step(batch)
        self.num_steps += 1
        self.num_batches += 1
        with self.exchanging():
            self.after_step()
        return loss

    def complete_gradients(self) -> None:
        """Start the optimizer's step from what was exchanged meanwhile."""
        if self.exchanged is not None:
            with self.exchanging():
                self.set_parameters(self.exchanged())

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """Count the time of the block as exchange."""
        began = time.perf_counter()
        yield
        self.exchange_s += time.perf_counter() - began

    @property
    def facts(self) -> dict[str, Any]:  # type: ignore[override]
        """``exchange_s`` and ``num_batches`` of this rank, and what the method adds."""
        own = {"exchange_s": self.exchange_s, "num_batches": self.num_batches}
        return own | self.facts_of_method()

    def facts_of_method(self) -> dict[str, Any]:
        """Return what only this method knows."""
        return {}

    def before_step(self) -> Callable[[], torch.Tensor] | None:
        """Start an exchange, if it is time to; return what waits for it and gives its result.

        The result, parameters of shape [Ψ], is what the step starts from. The gradient is that of
        the parameters before, so that the exchange can go on while it is computed.
        """
        return None

    def after_step(self) -> None:
        """Exchange what the method exchanges after so many steps."""

    @contextmanager
    def evaluated_model(self) -> Iterator[None]:
        """Have the module hold the model that the method is judged by."""
        own = self.flat_parameters()
        self.set_parameters(self.evaluated_parameters())
        try:
            yield
        finally:
            self.set_parameters(own)

    def evaluated_parameters(self) -> torch.Tensor:
        """Return the parameters of the model that the method is judged by, shape [Ψ]."""
        return mean_over_ranks(self.flat_parameters())

    def flat_parameters(self) -> torch.Tensor:
        """Return a copy of this rank's parameters, shape [Ψ]."""
        return parameters_to_vector(self.parameters).detach()

    def set_parameters(self, flat: torch.Tensor) -> None:
        """Give this rank's model other parameters, shape [Ψ]; they share the tensor's memory."""
        with torch.no_grad():
            vector_to_parameters(flat, self.parameters)

    @property
    def sent_bytes(self) -> float:
        """Bytes that this rank has sent in training, ring-equivalent."""
        return self.pushed_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of all parameters."""
        return sum(p.numel() * p.element_size() for p in self.parameters)

    def count_all_reduce(self) -> None:
        """Count an all-reduce of all parameters: a ring sends 2(N−1)/N of them."""
        world_size = dist.get_world_size()
        self.pushed_bytes += 2 * (world_size - 1) / world_size * self.num_bytes


def mean_over_ranks(vector: torch.Tensor) -> torch.Tensor:
    """Return the mean over all ranks, in the memory of the vector, any shape."""
    dist.all_reduce(vector)
    return vector.div_(dist.get_world_size())


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
