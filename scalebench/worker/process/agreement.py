"""What ranks tell one another outside of the training, and what they agree on."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

Combine = Callable[[torch.Tensor], torch.Tensor]
"""The values of the ranks that are there, shape [ranks, K] → what they agree on, shape [K]."""


def gather_json(item: Any, group: "dist.ProcessGroup") -> list[Any]:
    """Return what every rank of a group has given, by rank; tuples come back as lists.

    JSON, never pickled objects: torch's own ``all_gather_object`` unpickles what it receives, so
    who can connect to a rank could have it run anything.

    ``item`` is what JSON can hold; ``group`` is of CPU tensors, and all of its ranks call this.
    """
    data = torch.frombuffer(bytearray(json.dumps(item).encode()), dtype=torch.uint8)
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(group.size())]
    dist.all_gather(lengths, torch.tensor([len(data)]), group)
    longest = max(int(length) for length in lengths)
    texts = [torch.empty(longest, dtype=torch.uint8) for _ in lengths]
    dist.all_gather(texts, torch.cat((data, data.new_zeros(longest - len(data)))), group)
    return [
        json.loads(text[: int(length)].numpy().tobytes())
        for text, length in zip(texts, lengths, strict=True)
    ]


def dtype_of(name: str) -> torch.dtype:
    """Return the type that ``str`` makes a name of, such as ``torch.float32``."""
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no type of a tensor")
    return found


def connect(
    rank: int, world_size: int, num_hubs: int, limit_s: float
) -> "dict[int, dist.ProcessGroup]":
    """Connect every rank with each of the first ``num_hubs`` ranks; every rank takes part.

    In a group of all ranks the end of one breaks the operations of all; the end of a process breaks
    its own connections, and no others. A method that goes on without a rank talks over these.

    Returns:
        Other rank → the group of it and this one, over gloo.
    """
    limit = timedelta(seconds=limit_s)
    found = {}
    for hub in range(num_hubs):
        for other in range(hub + 1, world_size):
            group = dist.new_group([hub, other], timeout=limit, backend="gloo")
            if rank in (hub, other):
                found[hub + other - rank] = group
    return found


class StarReduce:
    """This rank's way to agree with the others, where one of them may be lost.

    Each tells rank 0, which tells all. A rank that is lost takes no further part. Rank 0 says with
    every answer who is still there, so all know the same. Rank 0 itself cannot be lost.

    Attributes:
        alive: Ranks that took part in the last agreement, in order; the same on every rank.

    ``connections``: of rank 0 with every other rank, see `connect`; the other ranks have but one.
    """

    def __init__(
        self, rank: int, world_size: int, connections: "Mapping[int, dist.ProcessGroup]"
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self.connections = dict(connections)
        self.alive = list(range(world_size))

    def agree(self, values: torch.Tensor, combine: Combine) -> torch.Tensor:
        """Return, on every rank that is there alike, what comes of the values of all of them.

        ``values``: shape [K], float64, as many on every rank. Rank 0 combines them.

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
