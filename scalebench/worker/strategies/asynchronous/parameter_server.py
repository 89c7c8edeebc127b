"""A parameter server: workers push gradients, servers step and answer with the parameters.

The parameters are one vector, cut into as many equal parts as there are servers; for an optimizer
that needs whole layers, between two of them (`division.py`). Server s is
threads in the process of rank s, so a rank that serves also trains. They use gloo's point-to-point
messages over a connection for each worker, which the end of another worker does not break: torch's
RPC would do the same with one more process group, pickled messages and its own thread pool. What
the server decides is in `server.py`, how it is reached in `serving.py`.

Without a bound ranks share the work: the N batches of each step go to whoever asks next, so a slow
rank trains fewer of them and nobody waits for it but at an evaluation. So it is with backup
workers: a step ends when the server has made one. With a bound every rank trains one batch in a
step.

A gradient costs a worker two messages for each server, it and the parameters; through the
link of a single server go 2(N−1)·D bytes in each direction together (Li et al. 2014).
"""

from collections.abc import Iterator
from itertools import repeat
from typing import Any

import torch
import torch.distributed as dist

from scalebench.spec import ParameterServer
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.process.pairs import connect
from scalebench.worker.strategies.asynchronous.division import (
    bounds_between_layers,
    equal_bounds,
    layers_within,
    needs_whole_layers,
)
from scalebench.worker.strategies.asynchronous.replica import Replica
from scalebench.worker.strategies.asynchronous.server import Server
from scalebench.worker.strategies.asynchronous.serving import (
    GOODBYE,
    GRADIENT,
    LOOK,
    PULL,
    PUSH,
    Serving,
)
from scalebench.worker.strategies.asynchronous.staging import Staging
from scalebench.worker.strategies.base import named_gradients
from scalebench.worker.strategies.execution import make_optimizer, precision


class ParameterServerTraining(Replica):
    """A worker, and a server's thread on the ranks that serve."""

    def __init__(self, strategy: ParameterServer, workload: Workload, context: RankContext) -> None:
        super().__init__(strategy, workload, context)
        self.rank, self.num_ranks = context.rank, context.cell.world_size
        self.rank_batch, self.context = context.cell.rank_batch, context
        self.shares_work = strategy.shares_work
        self.ticket = self.rank
        self.stream: Iterator[Any] | None = None
        self.last_loss = torch.zeros((), device=context.device)
        self.connections = connect(
            self.rank, self.num_ranks, strategy.servers, context.cell.limit_s
        )
        start = self.flat_parameters().cpu()
        whole = needs_whole_layers(self.optimizer)
        self.bounds = self._bounds(strategy.servers, whole)
        sizes = [self._size(server) for server in range(strategy.servers)]
        self.staging = Staging(sizes, context.device)
        self.serving: Serving | None = None
        if self.rank < strategy.servers:
            part = torch.nn.Parameter(start[self._part(self.rank)].clone())
            shapes = [parameter.shape for parameter in self.parameters] if whole else []
            layers = layers_within(part.detach(), self.bounds[self.rank], shapes)
            self.optimizer = make_optimizer(workload, layers or [part])  # of what it serves
            server = Server(
                part,
                self.optimizer,
                self.num_ranks,
                strategy.staleness_bound,
                strategy.backup_workers,
                strategy.staleness_aware,
                layers,
            )
            self.serving = Serving(server, self.rank, self.connections)

    def facts_of_method(self) -> dict[str, Any]:
        """Return a server's ``staleness`` → gradients; ``dropped``: of these, how many."""
        if self.serving is None:
            return {}
        server = self.serving.server
        counts = {str(steps): server.staleness[steps] for steps in sorted(server.staleness)}
        return {"staleness": counts} | ({"dropped": server.num_dropped} if server.backups else {})

    @property
    def num_samples(self) -> int:
        """Samples that all ranks have trained on, as far as this rank's server knows."""
        pushes = 0 if self.serving is None else self.serving.server.staleness.total()
        return pushes * self.rank_batch

    @property
    def lost_ranks(self) -> dict[int, int]:
        """Rank → samples of all ranks when this rank's server lost it."""
        lost = {} if self.serving is None else self.serving.lost
        return {rank: pushes * self.rank_batch for rank, pushes in lost.items()}

    @property
    def sent_bytes(self) -> float:
        """Bytes that this rank has sent: gradients, and as a server parameters."""
        return self.pushed_bytes + (self.serving.sent_bytes if self.serving is not None else 0)

    def step(self, batch: Any) -> torch.Tensor:
        """Train this rank's batches of a step: one, or where ranks share the work, what it gets.

        Returns:
            The mean loss of the last batch that this rank trained on.
        """
        self.num_steps += 1
        if not self.shares_work:
            self.last_loss = self.train_on(batch)
        while self.shares_work and self.ticket < self.num_steps * self.num_ranks:
            self.last_loss = self.train_on(batch if self.stream is None else next(self.stream))
        return self.last_loss

    def own_batches(self, stream: Iterator[Any]) -> Iterator[Any]:
        """Yield a batch for each step; where ranks share the work a step draws what it needs."""
        if not self.shares_work:
            return stream
        self.stream = stream
        return repeat(None)

    def train_on(self, batch: Any) -> torch.Tensor:
        """Push the gradient of a batch, and go on with the parameters that the servers answer."""
        self.module.zero_grad()
        with precision(self.execution, self.device):
            loss = self.loss(self.module, batch)
        loss.backward()
        gradient = torch.cat([g.flatten() for _, g in named_gradients(self.module)])
        if not gradient.isfinite().all():
            raise RuntimeError(
                f"the gradient of this rank's batch {self.num_batches + 1} is not finite; "
                "it is not pushed, because it would spoil the model of all ranks"
            )
        with self.exchanging():
            self.set_parameters(self.exchange(gradient))
        self.num_batches += 1
        return loss.detach()

    def exchange(self, gradient: torch.Tensor) -> torch.Tensor:
        """Push the parts of a gradient to their servers; return the parameters, shape [Ψ]."""
        pushes, pulls = self.staging.pushes, self.staging.pulls
        self.staging.stage(gradient, GRADIENT)
        under_way = []
        for server in self._others():
            message = pushes[server]
            under_way += [
                dist.irecv(pulls[server], server, self.connections[server], PULL),
                dist.isend(message, server, self.connections[server], PUSH),
            ]
            self.pushed_bytes += message.nbytes
        if self.serving is not None:
            pulls[self.rank].copy_(self.serving.push_own(pushes[self.rank][:-1]))
        for work in under_way:
            if work is not None:
                work.wait()
        self.ticket = int(pulls[0][-1])  # the first server hands out the work
        return self.staging.parameters()

    def judged_parameters(self) -> torch.Tensor:
        """Return the parameters of the servers, once every rank has its last answer."""
        self.context.barrier()
        parts = [self._looked_at(server) for server in range(len(self.bounds) - 1)]
        return torch.cat(parts).to(self.device)

    def _looked_at(self, server: int) -> torch.Tensor:
        if self.serving is not None and server == self.rank:
            return self.serving.look()
        answer = torch.empty(self._size(server) + 1)
        self._tell(server, LOOK)
        dist.recv(answer, server, self.connections[server], PULL)
        return answer[:-1]

    def _tell(self, server: int, kind: float) -> None:
        message = torch.full((self._size(server) + 1,), kind)
        dist.send(message, server, self.connections[server], PUSH)

    def finish(self) -> None:
        """End the servers; every rank takes part."""
        for server in self._others():
            self._tell(server, GOODBYE)
        if self.serving is not None:
            self.serving.join()

    def _bounds(self, num_servers: int, whole_layers: bool) -> list[int]:
        sizes = [parameter.numel() for parameter in self.parameters]
        if whole_layers:
            return bounds_between_layers(sizes, num_servers, self.optimizer)
        return equal_bounds(sum(sizes), num_servers)

    def _part(self, server: int) -> slice:
        return slice(self.bounds[server], self.bounds[server + 1])

    def _size(self, server: int) -> int:
        return self.bounds[server + 1] - self.bounds[server]

    def _others(self) -> Iterator[int]:
        return (s for s in range(len(self.bounds) - 1) if s != self.rank)
