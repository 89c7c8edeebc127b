"""A parameter server at work: its threads, what a gradient does there, and who may go on.

What a parameter server does with a gradient, and which workers may go on then.

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

A parameter server at work: threads that answer the workers, each over a connection of its own.

A worker whose process ends breaks its connection, and no others. The server goes on without it, if
its method can; see `Server`.

Chunks go over gloo's point-to-point messages. Before each goes a notice with its number, because
the receiver cannot know which one the sender found most urgent. When it is there an acknowledgement
goes back: without it a sender would fill the kernel's buffers, megabytes that no urgent chunk can
overtake any more. So many may be under way at once that the link stays busy meanwhile (the credit
of Peng et al. 2019). The notice of an answer also has a ticket; see `Server`.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from scalebench.worker.optimizers import set_rate
from scalebench.worker.strategies.asynchronous.chunks import Waiting

NOTICE, ACKNOWLEDGEMENT, FIRST_CHUNK = 1, 2, 3
"""Kinds of messages; chunk c has ``FIRST_CHUNK + c``."""
GOODBYE, LOOK = -1, -2
"""Notices that no chunk follows: of the end, and of the wish to see the server's parameters."""
NO_TICKET = -1
IN_FLIGHT = 4
"""Chunks that a rank has sent and that were not acknowledged yet, at most."""


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


@dataclass
class ChunkLink:
    """A worker's connection to a server, as either of them sees it.

    Two ranks that both serve share a connection for two links: their messages have other tags.

    Attributes:
        other_serves: Whether the other rank is this link's server, or this one.
        acknowledges: Whether chunks are acknowledged: where there is one, none can overtake it.
    """

    other: int
    group: "dist.ProcessGroup"
    other_serves: bool
    acknowledges: bool
    _expected: dict[int, Any] = field(default_factory=dict)

    def expect(self, chunk: int, values: torch.Tensor) -> None:
        """Have the next chunk of a number be written into a tensor, shape [elements]."""
        tag = self._tag(FIRST_CHUNK + chunk)
        self._expected[chunk] = dist.irecv(values, self.other, self.group, tag)

    def send(self, chunk: int, ticket: int, values: torch.Tensor) -> Callable[[], None]:
        """Start to send a chunk, shape [elements]; return what waits until it is there."""
        answer, notice = torch.empty(2, dtype=torch.int64), torch.tensor([chunk, ticket])
        works = [
            dist.isend(notice, self.other, self.group, self._tag(NOTICE)),
            dist.isend(values, self.other, self.group, self._tag(FIRST_CHUNK + chunk)),
        ]
        if self.acknowledges:
            tag = self._tag(ACKNOWLEDGEMENT)
            works.append(dist.irecv(answer, self.other, self.group, tag))

        def arrived() -> None:
            for work in works:
                assert work is not None, "this rank is in the group"
                work.wait()
            if self.acknowledges:
                assert answer.equal(notice), "acknowledged in the order of sending"

        return arrived

    def tell(self, what: int) -> None:
        """Tell the other rank ``GOODBYE`` or ``LOOK``."""
        notice = torch.tensor([what, NO_TICKET])
        dist.send(notice, self.other, self.group, self._tag(NOTICE))

    def receive(self) -> tuple[int, int]:
        """Wait for the next chunk, and acknowledge it.

        Returns:
            Its number, or what else the other rank tells; and a ticket.
        """
        notice = torch.empty(2, dtype=torch.int64)
        dist.recv(notice, self.other, self.group, self._tag(NOTICE))
        chunk, ticket = notice.tolist()
        if chunk >= 0:
            self._expected.pop(chunk).wait()
            if self.acknowledges:
                dist.send(notice, self.other, self.group, self._tag(ACKNOWLEDGEMENT))
        return chunk, ticket

    def _tag(self, kind: int) -> int:
        server_is_lower = (self.other < dist.get_rank()) == self.other_serves
        return 2 * kind + server_is_lower


class Parcel(NamedTuple):
    """A chunk, its values, shape [elements], and the links that it goes over, each with a ticket.

    The values must stay as they are until they are there.
    """

    chunk: int
    values: torch.Tensor
    to: Sequence[tuple[ChunkLink, int]]


class Outbox:
    """Two threads that send chunks, the next one as `Waiting` says, and hear that they are there.

    Attributes:
        sent_bytes: To all links together, what still waits included.

    Args:
        by_need: See `Waiting`.
        on_failure: Is called with an error of a thread, and with the link that it is about.
    """

    def __init__(
        self, by_need: bool, on_failure: Callable[[ChunkLink, RuntimeError], None]
    ) -> None:
        self.waiting = Waiting(by_need)
        self.sent_bytes = 0
        self._on_failure = on_failure
        self._changed = threading.Condition()
        self._under_way: deque[list[tuple[ChunkLink, Callable[[], None]]]] = deque()
        self._credit = IN_FLIGHT
        self._closed = False
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._send_all, self._hear_all)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, parcel: Parcel, need: int, counted: bool = True) -> None:
        """Have a chunk be sent; ``counted``: its bytes are those of training."""
        with self._changed:
            self.waiting.put(parcel, need)
            self.sent_bytes += counted * len(parcel.to) * parcel.values.nbytes
            self._changed.notify_all()

    def close(self) -> None:
        """Wait until everything is there, and end the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _send_all(self) -> None:
        while (parcel := self._next()) is not None:
            arrivals = []
            for link, ticket in parcel.to:
                try:
                    arrivals.append((link, link.send(parcel.chunk, ticket, parcel.values)))
                except RuntimeError as error:
                    self._on_failure(link, error)
            with self._changed:
                self._under_way.append(arrivals)
                self._changed.notify_all()

    def _next(self) -> Parcel | None:
        """Wait for a chunk and for credit; return the chunk to send. None: it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._credit and (len(self.waiting) or self._closed))
            if not len(self.waiting):
                return None
            self._credit -= 1
            parcel: Parcel = self.waiting.pop()
            return parcel

    def _hear_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._under_way or self._is_done())
                if not self._under_way:
                    return
                arrivals = self._under_way.popleft()
            for link, arrived in arrivals:
                try:
                    arrived()
                except RuntimeError as error:
                    self._on_failure(link, error)
            with self._changed:
                self._credit += 1
                self._changed.notify_all()

    def _is_done(self) -> bool:
        return self._closed and not len(self.waiting) and self._credit == IN_FLIGHT


class Serving:
    """The servers of a rank's chunks, a thread for each worker, and an outbox for the answers.

    Attributes:
        servers: Number of a chunk → its server.
        lost: Worker → how many gradients the first server had from all when it was gone.

    Args:
        servers: Of this rank's chunks.
        need_of: Number of a chunk → how soon a forward pass needs it; may change.
        by_need: Whether what is needed first is answered first.
        acknowledges: See `ChunkLink`.
        rank: Of this process, which is a worker, too.
        connections: Other rank → the group of it and this one.
        on_answer: Is called with a chunk, a ticket and values that this rank may use.
        on_failure: Is called with an error of a thread.
    """

    def __init__(
        self,
        servers: Mapping[int, Server],
        need_of: Callable[[int], int],
        by_need: bool,
        acknowledges: bool,
        rank: int,
        connections: "Mapping[int, dist.ProcessGroup]",
        on_answer: Callable[[int, int, torch.Tensor], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.servers, self._need_of, self._rank = servers, need_of, rank
        self.lost: dict[int, int] = {}
        self._on_answer, self._on_failure = on_answer, on_failure
        self._one_at_a_time = threading.Lock()
        # A worker that is gone is left out: the thread that listens to it notices.
        self.outbox = Outbox(by_need, on_failure=lambda link, error: None)
        self._links = {
            worker: ChunkLink(worker, group, False, acknowledges)
            for worker, group in connections.items()
        }
        self._threads = [
            threading.Thread(target=self._serve, args=(worker,), daemon=True)
            for worker in self._links
        ]
        for thread in self._threads:
            thread.start()

    @property
    def first(self) -> Server:
        """The server of the first chunk here; where there is one chunk a rank, it has all."""
        return next(iter(self.servers.values()))

    def push(
        self, worker: int, chunk: int, gradient: torch.Tensor, rate: float | None = None
    ) -> None:
        """Push a worker's gradient of a chunk, and answer whom it releases.

        ``gradient`` has shape [elements]. ``rate``: of steps from now on; None: it stays as it is.
        """
        with self._one_at_a_time:
            if rate is not None:
                set_rate(self.servers[chunk].optimizer, rate)
            self._answer(chunk, self.servers[chunk].push(worker, gradient))

    def look(self, worker: int) -> None:
        """Show a worker the parameters that are here."""
        with self._one_at_a_time:
            for chunk, server in self.servers.items():
                values = server.parameter.detach().clone()
                if worker == self._rank:
                    self._on_answer(chunk, NO_TICKET, values)
                else:
                    to = [(self._links[worker], NO_TICKET)]
                    self.outbox.put(Parcel(chunk, values, to), self._need_of(chunk), counted=False)

    def close(self) -> None:
        """Wait until all workers have said goodbye, or are gone."""
        for thread in self._threads:
            thread.join()
        self.outbox.close()

    def _answer(self, chunk: int, released: "list[int]") -> None:
        """Give the parameters to those who may go on."""
        if not released:
            return
        server = self.servers[chunk]
        values = server.parameter.detach()
        if not server.waits_for_all:
            values = values.clone()  # the next step may come before this answer is there
        to = [(self._links[one], server.tickets[one]) for one in released if one != self._rank]
        if to:
            self.outbox.put(Parcel(chunk, values, to), self._need_of(chunk))
        if self._rank in released:
            self._on_answer(chunk, server.tickets[self._rank], values)

    def _serve(self, worker: int) -> None:
        """Listen to a worker until it says goodbye, or is gone; say it, too."""
        link = self._links[worker]
        gradients = {c: torch.empty_like(one.parameter.data) for c, one in self.servers.items()}
        expected = list(gradients)
        try:
            while True:
                try:
                    for one in expected:
                        link.expect(one, gradients[one])
                    chunk, _ = link.receive()
                except RuntimeError:
                    self._go_on_without(worker)
                    return
                if chunk == GOODBYE:
                    break
                expected = [] if chunk == LOOK else [chunk]
                if chunk == LOOK:
                    self.look(worker)
                else:
                    self.push(worker, chunk, gradients[chunk])
            with suppress(RuntimeError):
                link.tell(GOODBYE)
        except BaseException as error:
            self._on_failure(error)

    def _go_on_without(self, worker: int) -> None:
        with self._one_at_a_time:
            self.lost[worker] = self.first.staleness.total()
            for chunk, server in self.servers.items():
                self._answer(chunk, server.leave(worker))
