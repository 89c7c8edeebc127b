"""A parameter server at work: threads that answer the workers, each over a connection of its own.

A worker whose process ends breaks its connection, and no others. The server goes on without it, if
its method can; see `server.py`.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

import torch
import torch.distributed as dist

from scalebench.worker.optimizers import set_rate
from scalebench.worker.strategies.asynchronous.link import (
    GOODBYE,
    LOOK,
    NO_TICKET,
    ChunkLink,
    Outbox,
    Parcel,
)
from scalebench.worker.strategies.asynchronous.server import Server


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
