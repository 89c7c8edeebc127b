"""What ranks agree on, where one of them may be lost: each tells rank 0, which tells all.

A rank that is lost takes no further part. Rank 0 says with every answer who is still there, so all
know the same. Rank 0 itself cannot be lost.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress

import torch
import torch.distributed as dist

Combine = Callable[[torch.Tensor], torch.Tensor]
"""The values of the ranks that are there, shape [ranks, K] → what they agree on, shape [K]."""


class Relay:
    """This rank's way to agree with the others.

    Attributes:
        alive: Ranks that took part in the last agreement, in order; the same on every rank.

    Args:
        rank: Of this process.
        world_size: N.
        connections: Of rank 0 with every other rank, see `pairs`; the other ranks have but one.
    """

    def __init__(
        self, rank: int, world_size: int, connections: "Mapping[int, dist.ProcessGroup]"
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self.connections = dict(connections)
        self.alive = list(range(world_size))

    def agree(self, values: torch.Tensor, combine: Combine) -> torch.Tensor:
        """Return, on every rank that is there alike, what comes of the values of all of them.

        Args:
            values: Shape [K], float64, as many on every rank.
            combine: What rank 0 does with them.

        Raises:
            RuntimeError: Rank 0 is gone.
        """
        if self.rank:
            dist.send(values, 0, self.connections[0])
            message = values.new_empty(len(values) + self.world_size)
            dist.recv(message, 0, self.connections[0])
            self.alive = message[len(values) :].nonzero().flatten().tolist()
            return message[: len(values)]
        told = {0: values}
        for rank in self.alive[1:]:
            heard = torch.empty_like(values)
            with suppress(RuntimeError):  # it is gone
                dist.recv(heard, rank, self.connections[rank])
                told[rank] = heard
        self.alive = sorted(told)
        agreed = combine(torch.stack([told[rank] for rank in self.alive]))
        present = values.new_zeros(self.world_size)
        present[self.alive] = 1
        for rank in self.alive[1:]:
            with suppress(RuntimeError):  # it has just gone; the next agreement is without it
                dist.send(torch.cat((agreed, present)), rank, self.connections[rank])
        return agreed
