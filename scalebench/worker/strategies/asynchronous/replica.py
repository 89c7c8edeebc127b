"""A model of a rank's own, trained by itself; a method says when, and what, ranks exchange."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from scalebench.spec import Execution
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies.base import Training
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
