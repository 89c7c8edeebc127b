"""A synchronous parameter server whose messages travel during the backward and the forward pass.

A gradient is pushed as soon as the backward pass has it. A layer of the next forward pass waits for
its own parameters only, so that the first layers compute while parameters of later ones are still
on their way. What is sent next, of what waits for the link, is one of

    backward    whole tensors in the order in which the backward pass makes them
    priority    chunks, those first that the next forward pass needs first

Gradients and parameters both go so. See `chunks.py` for the order and its sources, `chunk_link.py`
for the messages, `chunk_server.py` for the other side. The arithmetic is that of synchronous SGD.

The first forward pass tells in which order the layers need their parameters. Parameters that are
used without calling the layer that owns them are waited for before the step. An optimizer that
needs whole layers gets them: then ``priority`` sends whole tensors, too.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from scalebench.spec import ParameterServer
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.process.pairs import connect
from scalebench.worker.strategies.asynchronous.chunk_link import GOODBYE, ChunkLink, Outbox
from scalebench.worker.strategies.asynchronous.chunk_server import ChunkServer, ChunkServing
from scalebench.worker.strategies.asynchronous.chunks import cut, need_of_parameters
from scalebench.worker.strategies.asynchronous.division import needs_whole_layers
from scalebench.worker.strategies.asynchronous.replica import Replica
from scalebench.worker.strategies.asynchronous.staging import host_vector
from scalebench.worker.strategies.execution import make_optimizer, optimizer_kind, precision

MEGABYTE = 10**6
CHUNK_MB = 0.25
"""Unless the strategy says otherwise: 40 ms of a link of 50 Mbit/s."""


class OverlappedServerTraining(Replica):
    """A worker, and a server on the ranks that serve."""

    def __init__(self, strategy: ParameterServer, workload: Workload, context: RankContext) -> None:
        super().__init__(strategy, workload, context)
        self.rank, self.num_ranks = context.rank, context.cell.world_size
        self.rate_is_set = context.cell.recipe is not None
        sizes = [parameter.numel() for parameter in self.parameters]
        start = self.flat_parameters()
        self.values = host_vector(len(start), context.device, start.dtype).copy_(start)
        self.outgoing = host_vector(len(start), context.device, start.dtype).zero_()
        by_need = strategy.pushes == "priority"
        whole = needs_whole_layers(self.optimizer)
        cuts_layers = strategy.why_not_whole_layers(optimizer_kind(self.optimizer))
        if whole and cuts_layers is not None:
            raise Unsupported(cuts_layers)
        largest = int((strategy.chunk_mb or CHUNK_MB) * MEGABYTE) // self.values.element_size()
        in_chunks = by_need and not whole
        self.chunks = cut(sizes, max(1, largest) if in_chunks else None, strategy.servers)
        self.chunks_of = [[c for c in self.chunks if c.parameter == p] for p in range(len(sizes))]
        self.needs = list(range(len(sizes)))
        self.fired: list[list[int]] | None = []
        self._changed = threading.Condition()
        self._missing = [0] * len(sizes)  # chunks of a parameter that are on their way
        self._outdated: set[int] = set()  # parameters of the module that newer values replace
        self._failed: BaseException | None = None

        connections = connect(self.rank, self.num_ranks, strategy.servers, context.cell.limit_s)
        self.links = {
            server: ChunkLink(server, connections[server], other_serves=True)
            for server in range(strategy.servers)
            if server != self.rank
        }
        parts = [chunk.part for chunk in self.chunks]
        self.outbox = Outbox(by_need, self._links_of, self.outgoing, parts, self._fail)
        self.serving: ChunkServing | None = None
        if self.rank < strategy.servers:
            own = [chunk for chunk in self.chunks if chunk.server == self.rank]
            make = partial(make_optimizer, workload)
            shapes = [parameter.shape for parameter in self.parameters] if whole else []
            self.serving = ChunkServing(
                ChunkServer(self.values, own, self.num_ranks, make, shapes),
                *(self.values, self.chunks, self.needs, by_need, self.rank, connections),
                *(self._arrived, self._fail),
            )
        self.listeners = [
            threading.Thread(target=self._listen, args=(link,), daemon=True)
            for link in self.links.values()
        ]
        for listener in self.listeners:
            listener.start()
        self._hook_up()

    def step(self, batch: Any) -> torch.Tensor:
        """Train on a batch; its gradients may still be on their way when this returns."""
        self._wait_for(p for p, need in enumerate(self.needs) if need < 0)
        self.module.zero_grad()
        with precision(self.strategy, self.device):
            loss = self.loss(self.module, batch)
        if self.fired is not None:
            self.needs[:] = need_of_parameters(len(self.needs), self.fired)
            self.fired = None
        self.settle()
        loss.backward()
        for number, parameter in enumerate(self.parameters):
            if parameter.grad is None:
                self._push(number, torch.zeros_like(parameter))
        self.num_steps += 1
        self.num_batches += 1
        return loss.detach()

    def facts_of_method(self) -> dict[str, Any]:
        """Return ``num_chunks`` and ``num_overtakes``: a chunk sent before one that waited longer.

        Those of its pushes, and where this rank serves of its answers, too.
        """
        answered = 0 if self.serving is None else self.serving.outbox.waiting.num_overtakes
        return {
            "num_chunks": len(self.chunks),
            "num_overtakes": self.outbox.waiting.num_overtakes + answered,
        }

    @property
    def sent_bytes(self) -> float:
        """Bytes that this rank has sent: gradients, and as a server parameters."""
        return self.outbox.sent_bytes + (
            0 if self.serving is None else self.serving.outbox.sent_bytes
        )

    def settle(self) -> None:
        """Wait until the module has the parameters after the last step."""
        self._wait_for(range(len(self.needs)))

    @contextmanager
    def judged_model(self) -> Iterator[None]:
        """Have the module hold the servers' parameters: it does, once they are all there."""
        self.settle()
        yield

    def finish(self) -> None:
        """End the servers and the threads; every rank takes part."""
        self.settle()
        self.outbox.close()
        for link in self.links.values():
            link.say_goodbye()
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

    def _push(self, number: int, gradient: torch.Tensor) -> None:
        """Hand the gradient of a parameter to its servers."""
        with self.exchanging():
            chunks = self.chunks_of[number]
            first, last = chunks[0].start, chunks[-1].stop
            self.outgoing[first:last].copy_(gradient.detach().flatten())
            with self._changed:
                self._missing[number] = len(chunks)
                self._outdated.add(number)
            rate = self.optimizer.param_groups[0]["lr"] if self.rate_is_set else None
            for chunk in chunks:
                if chunk.server == self.rank:
                    assert self.serving is not None, "this rank serves"
                    self.serving.push_own(chunk.number, self.outgoing[chunk.part], rate)
                else:
                    self.links[chunk.server].expect(chunk.number, self.values[chunk.part])
                    self.outbox.put(chunk.number, self.needs[number])

    def _wait_for(self, parameters: Iterable[int]) -> None:
        """Wait until the module has the newest values of some parameters."""
        outdated = self._outdated.intersection(parameters)
        if not outdated:
            return
        with self.exchanging(), torch.no_grad():
            for number in outdated:
                with self._changed:
                    self._changed.wait_for(partial(self._is_there, number))
                    if self._failed is not None:
                        raise RuntimeError(str(self._failed)) from self._failed
                parameter, chunks = self.parameters[number], self.chunks_of[number]
                newest = self.values[chunks[0].start : chunks[-1].stop]
                parameter.copy_(newest.view_as(parameter))
                self._outdated.discard(number)

    def _is_there(self, parameter: int) -> bool:
        return not self._missing[parameter] or self._failed is not None

    def _arrived(self, chunk: int) -> None:
        with self._changed:
            self._missing[self.chunks[chunk].parameter] -= 1
            self._changed.notify_all()

    def _listen(self, link: ChunkLink) -> None:
        """Note the answers of a server until it says goodbye."""
        try:
            while (chunk := link.receive()) != GOODBYE:
                self._arrived(chunk)
        except BaseException as error:
            self._fail(RuntimeError(f"lost the parameter server of rank {link.other} ({error})"))

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failed = self._failed or error
            self._changed.notify_all()

    def _links_of(self, chunk: int) -> "list[ChunkLink]":
        return [self.links[self.chunks[chunk].server]]
