"""The parts of the parameters as one rank sees them: who serves each, and the messages to it.

At first each part has a server of its own. Where that is gone and training can go on without it,
rank 0 serves the part on: it is connected with all other ranks. Rank 0 begins as soon as one of its
threads hears that the server is gone: its main thread may be done with a step that the others
cannot end without the part. Every other rank notices by itself, when a message fails or when all
have agreed on who is there, and talks to rank 0 from then on.
"""

import threading
from collections.abc import Callable, Collection, Mapping

import torch
import torch.distributed as dist

from scalebench.worker.strategies.asynchronous.serving import (
    GOODBYE,
    GRADIENT,
    LOOK,
    Serving,
    tags_of,
)
from scalebench.worker.strategies.asynchronous.staging import Staging

Works = list[dist.Work]
OnLoss = Callable[[int], None]
"""Is called with a rank that is gone."""


class Parts:
    """A rank's way to the servers of all parts, of which it may be one.

    Attributes:
        holders: Of each part, the rank that serves it.
        servings: Of each part that this rank serves, how.
        pushed_bytes: That this rank has sent to other servers in training.
        newest: This rank's copy of the parameters, shape [Ψ]: the last that the servers answered.

    Args:
        rank: Of this process.
        connections: Other rank → the group of it and this one.
        staging: The messages to each part, and its answers.
        serve: Begins to serve a part in this process, from these parameters, shape [Ψ], and says
            which workers it loses.
        may_lose: Ranks without which training goes on.
        parameters: At the start, shape [Ψ].
    """

    def __init__(
        self,
        rank: int,
        connections: "Mapping[int, dist.ProcessGroup]",
        staging: Staging,
        serve: Callable[[int, torch.Tensor, OnLoss], Serving],
        may_lose: Collection[int],
        parameters: torch.Tensor,
    ) -> None:
        self.rank, self.connections, self.staging = rank, connections, staging
        self.serve, self.may_lose, self.newest = serve, may_lose, parameters
        self.holders = list(range(len(staging.pushes)))
        self.servings: dict[int, Serving] = {}
        self.pushed_bytes = 0.0
        self._one_at_a_time = threading.Lock()
        if rank in self.holders:
            self._serve(rank)

    @property
    def own(self) -> Serving | None:
        """How this rank serves the part of its number; None: there is none."""
        return self.servings.get(self.rank)

    @property
    def taken_over(self) -> list[int]:
        """Parts whose servers are gone, and which this rank serves on."""
        return sorted(self.servings.keys() - {self.rank})

    @property
    def sent_bytes(self) -> float:
        """Bytes that this rank has sent: gradients, and as a server parameters."""
        return self.pushed_bytes + sum(serving.sent_bytes for serving in self.servings.values())

    def exchange(self, gradient: torch.Tensor) -> torch.Tensor:
        """Push each part of a gradient to its server; return the parameters, shape [Ψ]."""
        self.staging.stage(gradient, GRADIENT)
        own = list(self.servings)
        begun = {part: self._begun(part) for part in self._all_but(own)}
        for part in own:
            self._push_own(part)
        for part, works in begun.items():
            self._end(part, works)
        self.newest = self.staging.parameters()
        return self.newest

    def look(self) -> torch.Tensor:
        """Return the parameters that the servers have now, shape [Ψ] on the CPU."""
        return torch.cat([self._looked_at(part) for part in range(len(self.holders))])

    def leave_out(self, alive: Collection[int]) -> None:
        """Go on without all servers but these ranks."""
        for part, holder in enumerate(self.holders):
            if holder not in alive:
                self._go_on_without(part)

    def finish(self) -> None:
        """End all servers; every rank takes part."""
        own = list(self.servings)
        for part in self._all_but(own):
            try:
                self._tell(part, GOODBYE)
            except RuntimeError as error:
                self._raise_unless_dispensable(part, error)
        for part in own:
            self.servings[part].join()

    def _take_over_from(self, lost: int) -> None:
        """Serve the part of a rank that is gone, if it had one and this is rank 0.

        Threads call this. The main thread may be anywhere, and notices by its own next message.
        """
        if self.rank == 0 and lost in self.may_lose and lost < len(self.holders):
            self._serve(lost)

    def _serve(self, part: int) -> None:
        with self._one_at_a_time:
            if part not in self.servings:
                self.servings[part] = self.serve(part, self.newest, self._take_over_from)

    def _all_but(self, own: Collection[int]) -> list[int]:
        return [part for part in range(len(self.holders)) if part not in own]

    def _push(self, part: int) -> Works:
        """Begin to push a part to the rank that serves it, and to pull its answer."""
        holder, message = self.holders[part], self.staging.pushes[part]
        group, (push_tag, pull_tag) = self.connections[holder], tags_of(part, holder)
        works = [
            dist.irecv(self.staging.pulls[part], holder, group, pull_tag),
            dist.isend(message, holder, group, push_tag),
        ]
        self.pushed_bytes += message.nbytes
        return [work for work in works if work is not None]

    def _push_own(self, part: int) -> None:
        answer = self.servings[part].push_own(self.staging.pushes[part][:-1])
        self.staging.pulls[part].copy_(answer)

    def _begun(self, part: int) -> Works:
        """Begin to push a part; where its server is gone already nothing is under way."""
        try:
            return self._push(part)
        except RuntimeError as error:
            self._raise_unless_dispensable(part, error)
            return []

    def _end(self, part: int, works: Works) -> None:
        """Wait for the answer to a push; without one push the part to the rank that goes on."""
        try:
            for work in works:
                work.wait()
        except RuntimeError as error:
            self._raise_unless_dispensable(part, error)
            works = []
        if works:
            return
        self._go_on_without(part)
        if part in self.servings:
            self._push_own(part)
        else:
            for work in self._push(part):
                work.wait()

    def _raise_unless_dispensable(self, part: int, error: RuntimeError) -> None:
        if self.holders[part] not in self.may_lose:
            raise error

    def _go_on_without(self, part: int) -> None:
        """Have rank 0 serve a part whose server is gone."""
        self.holders[part] = 0
        if self.rank == 0:
            self._serve(part)

    def _looked_at(self, part: int) -> torch.Tensor:
        """Return what the server of a part has, shape [K]."""
        try:
            return self._look(part)
        except RuntimeError as error:
            self._raise_unless_dispensable(part, error)
            self._go_on_without(part)
            return self._look(part)

    def _look(self, part: int) -> torch.Tensor:
        if part in self.servings:
            return self.servings[part].look()
        answer = torch.empty_like(self.staging.pulls[part], pin_memory=False)
        self._tell(part, LOOK)
        holder = self.holders[part]
        _, pull_tag = tags_of(part, holder)
        dist.recv(answer, holder, self.connections[holder], pull_tag)
        return answer[:-1]

    def _tell(self, part: int, kind: float) -> None:
        holder = self.holders[part]
        push_tag, _ = tags_of(part, holder)
        message = torch.full_like(self.staging.pushes[part], kind)
        dist.send(message, holder, self.connections[holder], push_tag)
