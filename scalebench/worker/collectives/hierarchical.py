"""Hierarchical all-reduce: inside the hosts, across them, inside again (Mikami et al. 2018).

1. Inside each host a ring reduce-scatter leaves each of its g ranks with the host's sum of one
   shard.
2. Across hosts, ranks that hold the same shard all-reduce it around a ring.
3. Inside each host a ring all-gather hands all shards to all ranks.

Law, M hosts of g ranks: inside, each rank sends 2(g−1)/g·D bytes over the fast links; across hosts
2(M−1)/M·D/g over the slow ones, g times less than in a flat algorithm; turns 2(g−1) + 2(M−1)
instead of 2(gM−1). Time 2(g−1)·α_i + 2(g−1)/g·D/B_i + 2(M−1)·α_e + 2(M−1)/M·D/(g·B_e), B_e per
rank: where g ranks share a host's link, it is the g-th part of that.

Hosts may have different numbers of ranks: there are as many shards as the smallest host has ranks.
In a larger host the ranks beyond that hold none and only take part in the rings inside, where each
rank then sends up to 2D.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from scalebench.errors import UsageError
from scalebench.grouping import by_key
from scalebench.worker.collectives.execute import Piece, Step, bounds, reduce_in_place
from scalebench.worker.collectives.ring import all_gather, reduce_scatter


def schedule(
    rank: int, world_size: int, length: int, segment: int, hosts: Sequence[Hashable]
) -> Iterator[Step]:
    """Yield what ``rank`` does; lengths in elements.

    ``hosts``: of each rank, by name or number; the same on every rank, and hashable.

    Raises:
        UsageError: They do not name one host for each rank.
    """
    if len(hosts) != world_size:
        raise UsageError(
            f"hosts names {len(hosts)} hosts for {world_size} ranks; give the host of each rank."
        )
    place = _Place.of(rank, length, hosts)
    yield from reduce_scatter(place.inside, place.position, place.shards, segment)
    if place.across:
        yield from reduce_scatter(place.across, place.host, place.chunks, segment)
        yield from all_gather(place.across, place.host, place.chunks, segment)
    yield from all_gather(place.inside, place.position, place.shards, segment)


all_reduce = partial(reduce_in_place, schedule=schedule)


@dataclass(frozen=True)
class _Place:
    """Where a rank stands in both levels.

    Attributes:
        inside: Ranks of its host.
        position: Its place among them.
        shards: One for each of them; empty beyond the smallest host's number of ranks.
        across: The ranks that hold the same shard, one per host; empty if it holds none.
        host: Number of its host.
        chunks: The parts of its shard, one for each host.
    """

    inside: list[int]
    position: int
    shards: list[Piece]
    across: list[int]
    host: int
    chunks: list[Piece]

    @classmethod
    def of(cls, rank: int, length: int, hosts: Sequence[Hashable]) -> "_Place":
        members = ranks_by_host(hosts)
        host = next(number for number, ranks in enumerate(members) if rank in ranks)
        inside = members[host]
        position = inside.index(rank)
        num_shards = min(map(len, members))
        shards = [bounds(Piece(0, length), num_shards, part) for part in range(num_shards)]
        empty = [Piece(length, length)] * (len(inside) - num_shards)
        holds_one = position < num_shards
        across = [ranks[position] for ranks in members] if holds_one else []
        chunks = [bounds(shards[position], len(across), part) for part in range(len(across))]
        return cls(inside, position, shards + empty, across, host, chunks)


def ranks_by_host(hosts: Sequence[Hashable]) -> list[list[int]]:
    """Return the ranks of each host, hosts in the order in which they first appear."""
    members = by_key((host, rank) for rank, host in enumerate(hosts))
    return list(members.values())
