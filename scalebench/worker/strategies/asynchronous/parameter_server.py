"""A parameter server: workers push gradients, servers step and answer with the parameters.

The parameters are one vector, cut into chunks that ranks 0 to S−1 keep. A server is threads in the
process of its rank, so a rank that serves also trains. They use gloo's point-to-point messages over
a connection for each worker, which the end of another worker does not break: torch's RPC would do
the same with one more process group, pickled messages and its own thread pool. What a server
decides and how it is reached is in `serving.py`, what is sent first in
`chunks.py`; when gradients are pushed: ``pushes`` of `scalebench.spec.ParameterServer`.

With pushes during backward the first forward pass tells in which order the layers need their
parameters. Those that are used without calling the layer that owns them are waited for before the
step.

Without a bound ranks share the work: each of the N batches of a step goes to the rank that asks
next, so a slow rank trains fewer of them and no rank waits for it but at an evaluation. So it is
with backup workers: a step ends when the server has made one. With a bound every rank trains one
batch in a step. Where a server is gone its part of the parameters is, too, and training fails.

Servers are on the CPU, and gloo sends from the CPU's memory; a GPU copies to and from pinned memory
by itself. A gradient costs a worker two messages for each server, it and the parameters; through
the link of a single server go 2(N−1)·D bytes in each direction together (Li et al. 2014).
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, repeat
from typing import Any

import torch

from scalebench.spec import ParameterServer
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext, connect
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.strategies.asynchronous.chunks import (
    ELEMENTWISE,
    Chunk,
    cut,
    layers_within,
    need_of_parameters,
    one_each,
)
from scalebench.worker.strategies.asynchronous.replica import Replica
from scalebench.worker.strategies.asynchronous.serving import (
    GOODBYE,
    LOOK,
    NO_TICKET,
    ChunkLink,
    Outbox,
    Parcel,
    Server,
    Serving,
)
from scalebench.worker.strategies.base import named_gradients
from scalebench.worker.strategies.execution import make_optimizer, optimizer_kind, precision

MEGABYTE = 10**6
CHUNK_MB = 0.25
"""Unless the strategy says otherwise: 40 ms of a link of 50 Mbit/s."""


class ParameterServerTraining(Replica):
    """A worker, and servers on the ranks that serve."""

    def __init__(self, strategy: ParameterServer, workload: Workload, context: RankContext) -> None:
        super().__init__(strategy, workload, context)
        self.context, self.rank, self.num_ranks = context, context.rank, context.cell.world_size
        self.together, self.by_need = strategy.pushes == "together", strategy.pushes == "priority"
        self.rate_is_set = context.cell.recipe is not None
        self.ticket = context.rank
        self.stream: Iterator[Any] | None = None
        self.last_loss = torch.zeros((), device=context.device)
        start, on_gpu = self.flat_parameters(), context.device.type == "cuda"
        empty = partial(torch.empty, len(start), dtype=start.dtype, pin_memory=on_gpu)
        self.values, self.outgoing = empty().copy_(start), empty().zero_()
        whole = type(self.optimizer) not in ELEMENTWISE
        self.chunks = self._chunks(whole)
        self.chunks_of = [
            [c for c in self.chunks if p in c.parameters] for p in range(len(self.parameters))
        ]
        ends = accumulate((parameter.numel() for parameter in self.parameters), initial=0)
        self.starts = list(ends)  # of each parameter in the vector of all
        self.needs = list(range(len(self.parameters)))
        self.fired: list[list[int]] | None = []
        self._changed = threading.Condition()
        self._missing = [0] * len(self.parameters)  # chunks of a parameter that are on their way
        self._outdated: set[int] = set()  # parameters of the module that newer values replace
        self._failed: BaseException | None = None

        connections = connect(self.rank, self.num_ranks, strategy.servers, context.cell.limit_s)
        self.links = {
            server: ChunkLink(server, connections[server], True, acknowledges=not self.together)
            for server in range(strategy.servers)
            if server != self.rank
        }
        self.outbox = Outbox(self.by_need, self._lost_server)
        self.serving: Serving | None = None
        if self.rank < strategy.servers:
            own = [chunk for chunk in self.chunks if chunk.server == self.rank]
            self.serving = Serving(
                {chunk.number: self._server(chunk, workload, whole) for chunk in own},
                *(self._need_of, self.by_need, not self.together, self.rank, connections),
                *(self._arrived, self._fail),
            )
        self.listeners = [
            threading.Thread(target=self._listen, args=(link,), daemon=True)
            for link in self.links.values()
        ]
        for listener in self.listeners:
            listener.start()
        if not self.together:
            self._hook_up()

    def _chunks(self, whole: bool) -> list[Chunk]:
        """Return who keeps what; ``whole``: the optimizer needs whole layers."""
        sizes = [parameter.numel() for parameter in self.parameters]
        if self.together:
            return one_each(sizes, self.strategy.servers, self.optimizer if whole else None)
        cuts_layers = self.strategy.why_not_whole_layers(optimizer_kind(self.optimizer))
        if whole and cuts_layers is not None:
            raise Unsupported(cuts_layers)
        size = (self.strategy.chunk_mb or CHUNK_MB) * MEGABYTE
        largest = max(1, int(size) // self.values.element_size())
        return cut(sizes, largest if self.by_need and not whole else None, self.strategy.servers)

    def _server(self, chunk: Chunk, workload: Workload, whole: bool) -> Server:
        """Return the server of a chunk, which begins with the parameters that this rank has."""
        parameter = torch.nn.Parameter(self.values[chunk.part].clone())
        shapes = [each.shape for each in self.parameters] if whole else []
        layers = layers_within(parameter.detach(), chunk.start, shapes)
        return Server(
            parameter,
            make_optimizer(workload, layers or [parameter]),
            self.num_ranks,
            self.strategy.staleness_bound,
            self.strategy.backup_workers,
            self.strategy.staleness_aware,
            layers,
        )

    def facts_of_method(self) -> dict[str, Any]:
        """Return what a rank knows of its pushes, and one that serves of its answers.

        ``staleness`` → gradients; ``dropped``: of these, how many. Where pushes overlap with
        passes, ``num_chunks`` and ``num_overtakes``: a chunk sent before one that waited longer.
        """
        if not self.together:
            answered = 0 if self.serving is None else self.serving.outbox.waiting.num_overtakes
            return {
                "num_chunks": len(self.chunks),
                "num_overtakes": self.outbox.waiting.num_overtakes + answered,
            }
        if self.serving is None:
            return {}
        server = self.serving.first
        counts = {str(steps): server.staleness[steps] for steps in sorted(server.staleness)}
        return {"staleness": counts} | ({"dropped": server.num_dropped} if server.backups else {})

    @property
    def num_samples(self) -> int | None:
        """Samples that all ranks have trained on, as far as this rank's server knows."""
        if not self.together:
            return None
        pushes = 0 if self.serving is None else self.serving.first.staleness.total()
        return pushes * self.context.cell.rank_batch

    @property
    def lost_ranks(self) -> dict[int, int]:
        """Rank → samples of all ranks when this rank's server lost it."""
        lost = {} if self.serving is None else self.serving.lost
        return {rank: pushes * self.context.cell.rank_batch for rank, pushes in lost.items()}

    @property
    def sent_bytes(self) -> float:
        """Bytes that this rank has sent: gradients, and as a server parameters."""
        answered = 0 if self.serving is None else self.serving.outbox.sent_bytes
        return self.outbox.sent_bytes + answered

    def step(self, batch: Any) -> torch.Tensor:
        """Train this rank's batches of a step: one, or where ranks share the work, what it gets.

        Pushed during the backward pass, gradients may still be on their way when this returns.

        Returns:
            The mean loss of the last batch that this rank trained on.
        """
        self.num_steps += 1
        shares_work = self.strategy.shares_work
        if not shares_work:
            self.last_loss = self.train_on(batch)
        while shares_work and self.ticket < self.num_steps * self.num_ranks:
            self.last_loss = self.train_on(batch if self.stream is None else next(self.stream))
        return self.last_loss

    def own_batches(self, stream: Iterator[Any]) -> Iterator[Any]:
        """Yield a batch for each step; where ranks share the work a step draws what it needs."""
        if not self.strategy.shares_work:
            return stream
        self.stream = stream
        return repeat(None)

    def train_on(self, batch: Any) -> torch.Tensor:
        """Push the gradient of a batch; pushed together, go on with what the servers answer."""
        self._wait_for(p for p, need in enumerate(self.needs) if need < 0)
        self.module.zero_grad()
        with precision(self.strategy, self.device):
            loss = self.loss(self.module, batch)
        if self.fired and not self.together:
            self.needs[:] = need_of_parameters(len(self.needs), self.fired)
        self.fired = None
        self.finish_exchanges()
        loss.backward()
        if self.together:
            self._push_together()
            self.finish_exchanges()
        else:
            for number, parameter in enumerate(self.parameters):
                if parameter.grad is None:
                    self._push(number, torch.zeros_like(parameter))
        self.num_batches += 1
        return loss.detach()

    def finish_exchanges(self) -> None:
        """Wait until the module has the parameters after the last step."""
        self._wait_for(range(len(self.needs)))

    @contextmanager
    def evaluated_model(self) -> Iterator[None]:
        """Have the module hold the servers' parameters."""
        if self.together:
            with super().evaluated_model():
                yield
            return
        self.finish_exchanges()  # it does, once they are all there
        yield

    def evaluated_parameters(self) -> torch.Tensor:
        """Return the parameters of the servers, once every rank has its last answer."""
        self.context.barrier()
        self._expect(self.chunks)
        for link in self.links.values():
            link.tell(LOOK)
        if self.serving is not None:
            self.serving.look(self.rank)
        self._wait_until_there(range(len(self.needs)))
        return self.values.to(self.device, copy=True)

    def finish(self) -> None:
        """End the servers and the threads; every rank takes part."""
        self.finish_exchanges()
        self.outbox.close()
        for link in self.links.values():
            link.tell(GOODBYE)
        for listener in self.listeners:
            listener.join()
        if self.serving is not None:
            self.serving.close()

    def _hook_up(self) -> None:
        """Push each gradient when it is there; have each layer wait for its parameters."""
        numbers = {id(parameter): number for number, parameter in enumerate(self.parameters)}
        for number, parameter in enumerate(self.parameters):
            parameter.register_post_accumulate_grad_hook(
                lambda p, number=number: self._push(number, p.grad)
            )
        for layer in self.module.modules():
            own = [numbers[id(parameter)] for parameter in layer.parameters(recurse=False)]
            if own:
                layer.register_forward_pre_hook(partial(self._before_layer, own))

    def _before_layer(self, own: "list[int]", *_: Any) -> None:
        if self.fired is not None:
            self.fired.append(own)
        self._wait_for(own)

    def _push_together(self) -> None:
        gradient = torch.cat([g.flatten() for _, g in named_gradients(self.module)])
        if not gradient.isfinite().all():
            raise RuntimeError(
                f"the gradient of this rank's batch {self.num_batches + 1} is not finite; "
                "it is not pushed, because it would spoil the model of all ranks"
            )
        with self.exchanging():
            self.outgoing.copy_(gradient)
            self._send(range(len(self.needs)), self.chunks)

    def _push(self, number: int, gradient: torch.Tensor) -> None:
        """Hand the gradient of a parameter to its servers."""
        with self.exchanging():
            where = slice(*self.starts[number : number + 2])
            self.outgoing[where].copy_(gradient.detach().flatten())
            self._send([number], self.chunks_of[number])

    def _send(self, parameters: Iterable[int], chunks: Sequence[Chunk]) -> None:
        """Push chunks of the outgoing gradient, which make up the gradients of parameters."""
        self._outdated.update(parameters)
        self._expect(chunks)
        for chunk in chunks:
            if chunk.server != self.rank:
                to = [(self.links[chunk.server], NO_TICKET)]
                parcel = Parcel(chunk.number, self.outgoing[chunk.part], to)
                self.outbox.put(parcel, self._need_of(chunk.number))
        rate = self.optimizer.param_groups[0]["lr"] if self.rate_is_set else None
        for chunk in chunks:
            if chunk.server == self.rank and self.serving is not None:
                self.serving.push(self.rank, chunk.number, self.outgoing[chunk.part], rate)

    def _expect(self, chunks: Sequence[Chunk]) -> None:
        """Have the answers with some chunks be written into ``values``."""
        with self._changed:
            for chunk in chunks:
                for parameter in chunk.parameters:
                    self._missing[parameter] += 1
        for chunk in chunks:
            if chunk.server != self.rank:
                self.links[chunk.server].expect(chunk.number, self.values[chunk.part])

    def _need_of(self, chunk: int) -> int:
        return min(self.needs[parameter] for parameter in self.chunks[chunk].parameters)

    def _wait_for(self, parameters: Iterable[int]) -> None:
        """Wait until the module has the newest values of some parameters."""
        outdated = self._outdated.intersection(parameters)
        if not outdated:
            return
        with self.exchanging(), torch.no_grad():
            for number in sorted(outdated):
                self._wait_until_there([number])
                parameter = self.parameters[number]
                newest = self.values[slice(*self.starts[number : number + 2])]
                # On a GPU the next gradient comes after this copy, and the next values after that.
                parameter.copy_(newest.view_as(parameter), non_blocking=True)
                self._outdated.discard(number)

    def _wait_until_there(self, parameters: Iterable[int]) -> None:
        """Wait until ``values`` has what was asked for."""
        wanted = list(parameters)
        with self._changed:
            self._changed.wait_for(
                lambda: self._failed is not None or not any(self._missing[p] for p in wanted)
            )
            if self._failed is not None:
                raise RuntimeError(str(self._failed)) from self._failed

    def _arrived(self, chunk: int, ticket: int, values: torch.Tensor | None = None) -> None:
        """Note that a chunk is in ``values``, or copy it there."""
        if values is not None:
            self.values[self.chunks[chunk].part].copy_(values)
        with self._changed:
            if chunk == 0 and ticket != NO_TICKET:
                self.ticket = ticket  # the first server hands out the work
            for parameter in self.chunks[chunk].parameters:
                self._missing[parameter] -= 1
            self._changed.notify_all()

    def _listen(self, link: ChunkLink) -> None:
        """Note the answers of a server until it says goodbye."""
        try:
            while (answer := link.receive())[0] != GOODBYE:
                self._arrived(*answer)
        except RuntimeError as error:
            self._lost_server(link, error)
        except BaseException as error:
            self._fail(error)

    def _lost_server(self, link: ChunkLink, error: RuntimeError) -> None:
        self._fail(RuntimeError(f"lost the parameter server of rank {link.other} ({error})"))

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failed = self._failed or error
            self._changed.notify_all()
