"""What a parameter server does with a gradient, and which workers may go on then.

Every worker pushes a gradient, waits for the parameters, and goes on with those. Its clock is the
number of gradients that it has pushed; the server's version is the number of its steps.

    no bound         every gradient is a step of its own, and its worker goes on at once
    bound s ≥ 1      the same, but a worker waits while it is more than s ahead of the slowest
    bound 0          one step by the mean of all workers' gradients: synchronous training

The staleness of a gradient is the number of steps that the server has made since its worker got the
parameters. Without a bound its mean is N − 1, because everybody else steps once in the meantime, in
the mean: fast workers see less of it, slow ones more (Ho et al. 2013; Zhang et al. 2016).

Work is handed out by tickets, numbered through: with the parameters a worker gets the number of the
batch that it trains on next. So whoever is faster may do more of a common number of batches.
"""

from collections import Counter

import torch


class Server:
    """A part of the parameters, its optimizer, and the clocks of the workers.

    Attributes:
        parameter: The part, shape [K].
        staleness: Staleness → gradients.
        tickets: Of each worker, the number of the batch that it trains on.

    Args:
        parameter: The part at the start.
        optimizer: Of this parameter alone.
        num_workers: N.
        bound: Steps that a worker may be ahead; None: any number.
    """

    def __init__(
        self,
        parameter: torch.nn.Parameter,
        optimizer: torch.optim.Optimizer,
        num_workers: int,
        bound: int | None,
    ) -> None:
        self.parameter, self.optimizer, self.bound = parameter, optimizer, bound
        self.staleness: Counter[int] = Counter()
        self.tickets = list(range(num_workers))
        self._clocks = [0] * num_workers
        self._version = 0
        self._next_ticket = num_workers
        self._read = [0] * num_workers
        self._waiting: list[int] = []
        self._sum = torch.zeros_like(parameter)

    def push(self, worker: int, gradient: torch.Tensor) -> list[int]:
        """Take a worker's gradient, shape [K]; return who may go on with the parameters now."""
        self.staleness[self._version - self._read[worker]] += 1
        self._clocks[worker] += 1
        self._waiting.append(worker)
        if self.bound == 0:
            self._sum += gradient
            if len(self._waiting) == len(self._clocks):
                self._step(self._sum / len(self._clocks))
                self._sum.zero_()
        else:
            self._step(gradient)
        released = [one for one in self._waiting if self._may_go_on(one)]
        for one in released:
            self._waiting.remove(one)
            self._read[one] = self._version
            self.tickets[one] = self._next_ticket
            self._next_ticket += 1
        return released

    def _step(self, gradient: torch.Tensor) -> None:
        self.parameter.grad = gradient
        self.optimizer.step()
        self._version += 1

    def _may_go_on(self, worker: int) -> bool:
        return self.bound is None or self._clocks[worker] - min(self._clocks) <= self.bound
