"""What a parameter server does with a gradient, and which workers may go on then.

Every worker pushes a gradient, waits for the parameters, and goes on with those. Its clock is the
number of gradients that it has pushed; the server's version is the number of its steps.

    no bound         every gradient is a step of its own, and its worker goes on at once
    bound s ≥ 1      the same, but a worker waits while it is more than s ahead of the slowest
    bound 0          one step by the mean of all workers' gradients: synchronous training
    bound 0, b       one step by the mean of the first N − b gradients; later ones are dropped, and
    backup workers   their workers go on with the newest parameters (Chen et al. 2016)

The staleness of a gradient is the number of steps that the server has made since its worker got the
parameters. Without a bound its mean is N − 1, because everybody else steps once in the meantime, in
the mean: fast workers see less of it, slow ones more (Ho et al. 2013; Zhang et al. 2016).

Work is handed out by tickets, numbered through: with the parameters a worker gets the number of the
batch that it trains on next. So a faster rank may do more of a common number of batches. With
backup workers the number is that of the first batch of the server's next step.

A worker that is gone is not waited for, and its batch goes to the next who asks.
"""

from collections import Counter
from collections.abc import Sequence

import torch


class TooFewWorkers(RuntimeError):
    """So many workers are gone that a synchronous step cannot come together any more."""


class Server:
    """A part of the parameters, its optimizer, and the clocks of the workers.

    Attributes:
        parameter: The part, shape [K].
        staleness: Staleness → gradients, those that were dropped too.
        num_dropped: Gradients that came after the step that they were for.
        tickets: Of each worker, the number of the batch that it trains on.

    Args:
        parameter: The part at the start.
        optimizer: Of this parameter alone, or of the layers in it.
        num_workers: N.
        bound: Steps that a worker may be ahead; None: any number.
        backups: Gradients that a synchronous step does not wait for.
        damped: Whether a gradient of staleness τ makes a step τ times as small (Zhang et al. 2016,
            "Staleness-aware Async-SGD for Distributed Deep Learning").
        layers: Views that make up the parameter, in its order, for an optimizer that needs whole
            layers; empty: it has the parameter itself.
    """

    def __init__(
        self,
        parameter: torch.nn.Parameter,
        optimizer: torch.optim.Optimizer,
        num_workers: int,
        bound: int | None,
        backups: int = 0,
        damped: bool = False,
        layers: Sequence[torch.nn.Parameter] = (),
    ) -> None:
        self.parameter, self.optimizer, self.bound = parameter, optimizer, bound
        self.backups, self.damped, self.num_workers = backups, damped, num_workers
        self.layers = layers or (parameter,)
        self.staleness: Counter[int] = Counter()
        self.num_dropped = 0
        self.tickets = [0] * num_workers if backups else list(range(num_workers))
        self._clocks = dict.fromkeys(range(num_workers), 0)  # of those that are there
        self._version = 0
        self._next_ticket = num_workers
        self._returned: list[int] = []
        self._read = [0] * num_workers
        self._waiting: list[int] = []
        self._sum = torch.zeros_like(parameter)
        self._num_summed = 0

    @property
    def waits_for_all(self) -> bool:
        """Whether a step needs the gradients of all workers, and all have read the one before."""
        return self.bound == 0 and not self.backups

    def push(self, worker: int, gradient: torch.Tensor) -> list[int]:
        """Take a worker's gradient, shape [K]; return who may go on with the parameters now."""
        stale = self._version - self._read[worker]
        self.staleness[stale] += 1
        self._clocks[worker] += 1
        self._waiting.append(worker)
        if self.bound != 0:
            self._step(gradient, stale)
        elif stale:
            self.num_dropped += 1
        else:
            self._sum += gradient
            self._num_summed += 1
            if self._num_summed == self.num_workers - self.backups:
                self._step(self._sum / self._num_summed, 0)
                self._sum.zero_()
                self._num_summed = 0
        return self._released()

    def leave(self, worker: int) -> list[int]:
        """Go on without a worker; return who may go on with the parameters now.

        Raises:
            TooFewWorkers: No one can: synchronous steps need more workers than are left.
        """
        if self._clocks.pop(worker, None) is None:
            return []
        if worker in self._waiting:
            self._waiting.remove(worker)
        else:
            self._returned.append(self.tickets[worker])
        if self.bound == 0 and len(self._clocks) < self.num_workers - self.backups:
            raise TooFewWorkers(
                f"the parameter server lost worker {worker}, and a step needs the gradients of "
                f"{self.num_workers - self.backups} workers"
            )
        return self._released()

    def _step(self, gradient: torch.Tensor, stale: int) -> None:
        before = self.parameter.detach().clone() if self.damped and stale > 1 else None
        parts = gradient.split([layer.numel() for layer in self.layers])
        for layer, part in zip(self.layers, parts, strict=True):
            layer.grad = part.view_as(layer)
        self.optimizer.step()
        self._version += 1
        if before is not None:
            with torch.no_grad():
                self.parameter.copy_(before.lerp(self.parameter, 1 / stale))

    def _released(self) -> list[int]:
        """Return who may go on, each with a ticket."""
        released = [one for one in self._waiting if self._may_go_on(one)]
        for one in released:
            self._waiting.remove(one)
            self._read[one] = self._version
            self.tickets[one] = self._ticket()
        return released

    def _ticket(self) -> int:
        if self.backups:
            return self._version * self.num_workers
        if self._returned:
            return self._returned.pop(0)
        self._next_ticket += 1
        return self._next_ticket - 1

    def _may_go_on(self, worker: int) -> bool:
        if self.bound == 0:
            return self._version > self._read[worker]
        return self.bound is None or self._clocks[worker] - min(self._clocks.values()) <= self.bound
