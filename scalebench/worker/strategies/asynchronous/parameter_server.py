"""A parameter server: workers push gradients, servers step and answer with the parameters.

The parameters are one vector, cut into as many equal parts as there are servers. Server s is a
thread in the process of rank s, so a rank that serves also trains. It receives from whoever comes
first, over gloo's point-to-point messages: torch's RPC would do the same with one more process
group, pickled messages and its own thread pool. What the server decides is in `server.py`.

Without a bound ranks share the work: the N batches of each step go to whoever asks next, so a slow
rank trains fewer of them and nobody waits for it but at an evaluation. With a bound every rank
trains one batch in a step.

A gradient costs a worker two messages for each server, it and the parameters; through the
link of a single server go 2(N−1)·D bytes in each direction together (Li et al. 2014).
"""

import threading
from collections.abc import Iterator
from datetime import timedelta
from itertools import repeat
from typing import Any

import torch
import torch.distributed as dist

from scalebench.spec import ParameterServer
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies.asynchronous.replica import Replica
from scalebench.worker.strategies.asynchronous.server import Server
from scalebench.worker.strategies.base import named_gradients
from scalebench.worker.strategies.execution import make_optimizer, precision

PUSH, PULL = 1, 2
"""Tags of the messages."""
GRADIENT, GOODBYE = 0.0, 1.0
"""The last element of a message to a server: what it is. That of an answer is a ticket."""


class ParameterServerTraining(Replica):
    """A worker, and a server's thread on the ranks that serve."""

    def __init__(self, strategy: ParameterServer, workload: Workload, context: RankContext) -> None:
        super().__init__(strategy, workload, context)
        self.rank, self.num_ranks = context.rank, context.cell.world_size
        patience = timedelta(seconds=context.cell.limit_s)
        self.shares_work = strategy.staleness_bound is None
        self.ticket = self.rank
        self.stream: Iterator[Any] | None = None
        self.last_loss = torch.zeros((), device=context.device)
        self.group = dist.new_group(backend="gloo", timeout=patience)
        start = self.flat_parameters().cpu()
        self.bounds = [len(start) * s // strategy.servers for s in range(strategy.servers + 1)]
        self.serving: Serving | None = None
        if self.rank < strategy.servers:
            part = torch.nn.Parameter(start[self._part(self.rank)].clone())
            self.optimizer = make_optimizer(workload, [part])  # of the part that it serves
            server = Server(part, self.optimizer, self.num_ranks, strategy.staleness_bound)
            self.serving = Serving(server, self.rank, self.num_ranks, self.group)

    @property
    def facts(self) -> dict[str, Any]:
        """``staleness``: of a server, staleness → gradients."""
        if self.serving is None:
            return {}
        counts = self.serving.server.staleness
        return {"staleness": {str(steps): counts[steps] for steps in sorted(counts)}}

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
        gradient = torch.cat([g.flatten() for _, g in named_gradients(self.module)]).cpu()
        self.set_parameters(self.exchange(gradient).to(self.device))
        return loss.detach()

    def exchange(self, gradient: torch.Tensor) -> torch.Tensor:
        """Push the parts of a gradient to their servers; return the parameters, shape [Ψ]."""
        answers = {s: gradient.new_empty(self._size(s) + 1) for s in range(len(self.bounds) - 1)}
        under_way = []
        for server in self._others():
            part = self._part(server)
            message = torch.cat((gradient[part], gradient.new_tensor([GRADIENT])))
            under_way += [
                dist.irecv(answers[server], server, self.group, PULL),
                dist.isend(message, server, self.group, PUSH),
            ]
            self.pushed_bytes += message.nbytes
        if self.serving is not None:
            answers[self.rank] = self.serving.push_own(gradient[self._part(self.rank)])
        for work in under_way:
            if work is not None:
                work.wait()
        self.ticket = int(answers[0][-1])  # the first server hands out the work
        return torch.cat([answer[:-1] for answer in answers.values()])

    def judged_parameters(self) -> torch.Tensor:
        """Return the parameters of the servers; every rank has to have its last answer."""
        dist.barrier(group=self.group)
        found = torch.empty(self.bounds[-1])
        for server in range(len(self.bounds) - 1):
            part = found[self._part(server)]
            if self.serving is not None and server == self.rank:
                part.copy_(self.serving.server.parameter.detach())
            dist.broadcast(part, server, group=self.group)
        return found.to(self.device)

    def finish(self) -> None:
        """End the servers; every rank takes part."""
        for server in self._others():
            message = torch.full((self._size(server) + 1,), GOODBYE)
            dist.send(message, server, self.group, PUSH)
        if self.serving is not None:
            self.serving.join()

    def _part(self, server: int) -> slice:
        return slice(self.bounds[server], self.bounds[server + 1])

    def _size(self, server: int) -> int:
        return self.bounds[server + 1] - self.bounds[server]

    def _others(self) -> Iterator[int]:
        return (s for s in range(len(self.bounds) - 1) if s != self.rank)


class Serving:
    """A server at work: a thread that answers the other ranks; its own rank calls it directly.

    Attributes:
        sent_bytes: To other ranks.

    Args:
        server: What it serves.
        rank: Of this process, which is a worker, too.
        num_ranks: N.
        group: Of the messages.
    """

    def __init__(
        self, server: Server, rank: int, num_ranks: int, group: "dist.ProcessGroup | None"
    ) -> None:
        self.server, self.rank, self.num_ranks, self.group = server, rank, num_ranks, group
        self._own: torch.Tensor | None = None
        self._failed: BaseException | None = None
        self.sent_bytes = 0
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def push_own(self, gradient: torch.Tensor) -> torch.Tensor:
        """Push the gradient of this rank; return what a message to it would hold."""
        with self._changed:
            self._take(self.rank, gradient)
            self._changed.wait_for(lambda: self._own is not None or self._failed is not None)
            if self._failed is not None:
                raise RuntimeError("the parameter server stopped") from self._failed
            answer, self._own = self._own, None
            assert answer is not None, "waited for"
            return answer

    def join(self) -> None:
        """Wait until all other ranks have said goodbye."""
        self._thread.join()

    def _serve(self) -> None:
        """Take gradients from whoever comes first, until all others have said goodbye."""
        try:
            left = self.num_ranks - 1
            message = torch.empty(len(self.server.parameter) + 1)
            while left:
                worker = dist.recv(message, None, self.group, PUSH)
                if message[-1] == GOODBYE:
                    left -= 1
                    continue
                with self._changed:
                    self._take(worker, message[:-1].clone())
        except BaseException as error:
            with self._changed:
                self._failed = error
                self._changed.notify_all()

    def _take(self, worker: int, gradient: torch.Tensor) -> None:
        """Hand a gradient to the server, and the parameters to those who may go on."""
        for released in self.server.push(worker, gradient):
            ticket = torch.tensor([float(self.server.tickets[released])])
            message = torch.cat((self.server.parameter.detach(), ticket))
            if released == self.rank:
                self._own = message
                self._changed.notify_all()
            else:
                dist.send(message, released, self.group, PULL)
                self.sent_bytes += message.nbytes
