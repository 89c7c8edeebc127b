"""A parameter server at work: threads that answer the workers, each over a connection of its own.

A worker whose process ends breaks its connection, and no others. The server goes on without it, if
its method can; see `server.py`. The part of a server that is gone is served on by rank 0, over the
connections that this has anyway; such messages have tags of their own.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import torch
import torch.distributed as dist

from scalebench.worker.strategies.asynchronous.server import Server

PUSH, PULL = 1, 2
"""Tags of the messages to a server, and of its answers."""
GRADIENT, LOOK, GOODBYE = 0.0, 1.0, 2.0
"""The last element of a message to a server: what it is. That of an answer is a ticket."""


def tags_of(part: int, holder: int) -> tuple[int, int]:
    """Return the tags of the messages to the rank that serves a part, and of its answers.

    Args:
        part: Its number; the rank of this number serves it at first.
        holder: The rank that serves it now.
    """
    return (PUSH, PULL) if part == holder else (PUSH + 2 * part, PULL + 2 * part)


class Serving:
    """A server, and a thread for each worker; the worker of the same rank calls it directly.

    Attributes:
        sent_bytes: To other ranks, in training.
        lost: Worker → how many gradients the server had from all when it was gone.

    Args:
        server: What it serves.
        rank: Of this process, which is a worker, too.
        connections: Other rank → the group of it and this one.
        tags: Of the messages to this server, and of its answers.
        on_loss: Is called with a worker that is gone, by the thread that listened to it.
    """

    def __init__(
        self,
        server: Server,
        rank: int,
        connections: "Mapping[int, dist.ProcessGroup]",
        tags: tuple[int, int] = (PUSH, PULL),
        on_loss: Callable[[int], None] = lambda worker: None,
    ) -> None:
        self.server, self.rank, self.connections = server, rank, connections
        self.on_loss = on_loss
        self.push_tag, self.pull_tag = tags
        self.sent_bytes = 0
        self.lost: dict[int, int] = {}
        self._own: torch.Tensor | None = None
        self._failed: BaseException | None = None
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._serve, args=(worker,), daemon=True)
            for worker in connections
        ]
        for thread in self._threads:
            thread.start()

    def push_own(self, gradient: torch.Tensor) -> torch.Tensor:
        """Push the gradient of this rank; return what a message to it would hold."""
        with self._changed:
            self._answer(self.server.push(self.rank, gradient))
            self._changed.wait_for(lambda: self._own is not None or self._failed is not None)
            if self._failed is not None:
                raise RuntimeError(str(self._failed)) from self._failed
            answer, self._own = self._own, None
            assert answer is not None, "waited for"
            return answer

    def look(self) -> torch.Tensor:
        """Return a copy of the parameters that it serves, shape [K]."""
        with self._changed:
            return self.server.parameter.detach().clone()

    def join(self) -> None:
        """Wait until all other ranks have said goodbye, or are gone."""
        for thread in self._threads:
            thread.join()

    def _serve(self, worker: int) -> None:
        """Answer a worker until it says goodbye, or is gone."""
        message = torch.empty(len(self.server.parameter) + 1)
        try:
            while self._heard(worker, message) != GOODBYE:
                with self._changed:
                    if message[-1] == LOOK:
                        self._send({worker: self._message(worker)})
                    else:
                        self._answer(self.server.push(worker, message[:-1]))
        except BaseException as error:
            self._fail(error)

    def _heard(self, worker: int, message: torch.Tensor) -> float:
        """Wait for a worker's next message; return its kind, a goodbye where it is gone."""
        try:
            dist.recv(message, worker, self.connections[worker], self.push_tag)
        except RuntimeError:
            with self._changed:
                self.lost[worker] = self.server.staleness.total()
                self._answer(self.server.leave(worker))
            self.on_loss(worker)
            return GOODBYE
        return float(message[-1])

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failed = error
            self._changed.notify_all()

    def _answer(self, released: Sequence[int]) -> None:
        """Give the parameters to those who may go on."""
        messages = {worker: self._message(worker) for worker in released}
        self._own = messages.pop(self.rank, self._own)
        self._changed.notify_all()
        self.sent_bytes += sum(message.nbytes for message in messages.values())
        self._send(messages)

    def _send(self, messages: Mapping[int, torch.Tensor]) -> None:
        """Send to all workers at once, so that no link waits for another.

        A worker that is gone is left out; the thread that listens to it notices.
        """
        under_way = []
        for worker, message in messages.items():
            with suppress(RuntimeError):
                group = self.connections[worker]
                under_way.append(dist.isend(message, worker, group, self.pull_tag))
        for work in under_way:
            with suppress(RuntimeError):
                assert work is not None, "this rank is in the group"
                work.wait()

    def _message(self, worker: int) -> torch.Tensor:
        ticket = torch.tensor([float(self.server.tickets[worker])])
        return torch.cat((self.server.parameter.detach(), ticket))
