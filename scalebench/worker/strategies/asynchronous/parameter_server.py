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

Where a server is gone, and no step needs the gradients of all, rank 0 serves its part on, from its
own copy of the parameters. What others pushed since rank 0 got that copy is lost, and so is the
state of the server's optimizer. Rank 0 itself cannot be lost. See `parts.py`.

A gradient costs a worker two messages for each server, it and the parameters; through the
link of a single server go 2(N−1)·D bytes in each direction together (Li et al. 2014).
"""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise, repeat
from typing import Any

import torch

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
from scalebench.worker.strategies.asynchronous.parts import OnLoss, Parts
from scalebench.worker.strategies.asynchronous.replica import Replica
from scalebench.worker.strategies.asynchronous.server import Server
from scalebench.worker.strategies.asynchronous.serving import Serving, tags_of
from scalebench.worker.strategies.asynchronous.staging import Staging
from scalebench.worker.strategies.base import named_gradients
from scalebench.worker.strategies.execution import make_optimizer, precision


class ParameterServerTraining(Replica):
    """A worker, and a server's threads on the ranks that serve."""

    def __init__(self, strategy: ParameterServer, workload: Workload, context: RankContext) -> None:
        super().__init__(strategy, workload, context)
        self.context = context
        self.num_ranks, self.rank_batch = context.cell.world_size, context.cell.rank_batch
        self.shares_work = strategy.shares_work
        self.ticket = context.rank
        self.stream: Iterator[Any] | None = None
        self.last_loss = torch.zeros((), device=context.device)
        self.connections = connect(
            context.rank, self.num_ranks, strategy.servers, context.cell.limit_s
        )
        self.whole_layers = needs_whole_layers(self.optimizer)
        self.make_optimizer = partial(make_optimizer, workload)
        self.bounds = self._bounds(strategy.servers)
        sizes = [after - before for before, after in pairwise(self.bounds)]
        may_lose = strategy.dispensable(self.num_ranks)
        staging = Staging(sizes, context.device)
        start = self.flat_parameters()
        self.parts = Parts(context.rank, self.connections, staging, self._serve, may_lose, start)
        if self.parts.own is not None:
            self.optimizer = self.parts.own.server.optimizer

    def _serve(self, part: int, values: torch.Tensor, on_loss: OnLoss) -> Serving:
        """Begin to serve a part of the parameters, from values of all of them, shape [Ψ].

        A part that was another rank's is not bounded again: every worker also waits for the server
        of rank 0, and the lost server may have answered some of those whom that one has counted.
        """
        rank = self.context.rank
        first, end = self.bounds[part : part + 2]
        parameter = torch.nn.Parameter(values.cpu()[first:end].clone())
        shapes = [each.shape for each in self.parameters] if self.whole_layers else []
        layers = layers_within(parameter.detach(), first, shapes)
        server = Server(
            parameter,
            self.make_optimizer(layers or [parameter]),
            self.num_ranks,
            self.strategy.staleness_bound if part == rank else None,
            self.strategy.backup_workers,
            self.strategy.staleness_aware,
            layers,
        )
        self._keep_rate_alike(server)
        return Serving(server, rank, self.connections, tags_of(part, rank), on_loss)

    def facts_of_method(self) -> dict[str, Any]:
        """Return what a rank knows that serves.

        ``staleness`` → gradients; ``dropped``: of these, how many; ``taken_over``: ranks that are
        gone, and whose parts of the parameters this one serves on.
        """
        if self.parts.own is None:
            return {}
        server = self.parts.own.server
        counts = {str(steps): server.staleness[steps] for steps in sorted(server.staleness)}
        facts: dict[str, Any] = {"staleness": counts}
        if server.backups:
            facts["dropped"] = server.num_dropped
        if self.parts.taken_over:
            facts["taken_over"] = self.parts.taken_over
        return facts

    @property
    def num_samples(self) -> int:
        """Samples that all ranks have trained on, as far as this rank's server knows."""
        own = self.parts.own
        return 0 if own is None else own.server.staleness.total() * self.rank_batch

    @property
    def lost_ranks(self) -> dict[int, int]:
        """Rank → samples of all ranks when this rank's server lost it."""
        lost = {} if self.parts.own is None else self.parts.own.lost
        return {rank: pushes * self.rank_batch for rank, pushes in lost.items()}

    @property
    def sent_bytes(self) -> float:
        """Bytes that this rank has sent: gradients, and as a server parameters."""
        return self.parts.sent_bytes

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
        with precision(self.strategy, self.device):
            loss = self.loss(self.module, batch)
        loss.backward()
        gradient = torch.cat([g.flatten() for _, g in named_gradients(self.module)])
        if not gradient.isfinite().all():
            raise RuntimeError(
                f"the gradient of this rank's batch {self.num_batches + 1} is not finite; "
                "it is not pushed, because it would spoil the model of all ranks"
            )
        with self.exchanging():
            for serving in list(self.parts.servings.values()):
                self._keep_rate_alike(serving.server)
            self.set_parameters(self.parts.exchange(gradient))
            first_answer = self.parts.staging.pulls[0]
            self.ticket = int(first_answer[-1])  # the first server hands out the work
        self.num_batches += 1
        return loss.detach()

    def judged_parameters(self) -> torch.Tensor:
        """Return the parameters of the servers, once every rank has its last answer."""
        self.context.barrier()
        self.parts.leave_out(self.context.alive)
        return self.parts.look().to(self.device)

    def finish(self) -> None:
        """End the servers; every rank takes part."""
        self.parts.leave_out(self.context.alive)
        self.parts.finish()

    def _bounds(self, num_servers: int) -> list[int]:
        sizes = [parameter.numel() for parameter in self.parameters]
        if self.whole_layers:
            return bounds_between_layers(sizes, num_servers, self.optimizer)
        return equal_bounds(sum(sizes), num_servers)

    def _keep_rate_alike(self, server: Server) -> None:
        """Give a server of this rank the learning rate of its own: a race sets only that."""
        groups = server.optimizer.param_groups
        for own, each in zip(self.optimizer.param_groups, groups, strict=True):
            each["lr"] = own["lr"]
