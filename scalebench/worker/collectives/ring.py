"""Ring all-reduce: reduce-scatter, then all-gather, both around a ring (Patarasuk & Yuan 2009).

The vector is cut into N chunks. In each of N−1 steps every rank passes a chunk to its right
neighbour and adds the one that comes from the left to its own; then each rank has the sum of one
chunk, and N−1 more steps carry the sums around.

Law: 2(N−1) steps; each rank sends 2(N−1)/N·D bytes, the least that is possible unless a switch adds
up on the way; time 2(N−1)·α + 2(N−1)/N·D/B. Every link of the ring is busy all the time,
the latency grows with N.

A chunk is cut further into segments that follow one another (chunk pipelining): a segment is
passed on as soon as it is added, while the next one is on the wire. With ``both_ways`` one half of
the vector goes around to the right and the other to the left, at once: the same bytes, over both
directions of each link (a gain where a rank has two links, none where it has one full-duplex).
"""

from collections.abc import Iterator, Sequence
from functools import partial

from scalebench.worker.collectives.execute import (
    Piece,
    Receive,
    Schedule,
    Send,
    Step,
    bounds,
    num_segments,
    reduce_in_place,
    side_by_side,
)


def schedule(
    rank: int, world_size: int, length: int, segment: int, both_ways: bool = False
) -> Schedule:
    """Return what ``rank`` does; lengths in elements."""
    ring = range(world_size)
    if not both_ways:
        return _around(ring, rank, Piece(0, length), segment)
    right, left = (bounds(Piece(0, length), 2, half) for half in range(2))
    return side_by_side(
        _around(ring, rank, right, segment),
        _around(ring[::-1], world_size - 1 - rank, left, segment),
    )


all_reduce = partial(reduce_in_place, schedule=schedule)


def _around(ring: Sequence[int], position: int, whole: Piece, segment: int) -> Iterator[Step]:
    chunks = [bounds(whole, len(ring), part) for part in range(len(ring))]
    yield from reduce_scatter(ring, position, chunks, segment)
    yield from all_gather(ring, position, chunks, segment)


def reduce_scatter(
    ring: Sequence[int], position: int, chunks: Sequence[Piece], segment: int
) -> Iterator[Step]:
    """Leave the sum of ``chunks[position]`` at each position of the ring.

    ``ring``: ranks, each sends to the next one. ``chunks``: as many as ranks, the same on all of
    them; some may be empty.
    """
    for step in range(len(ring) - 1):
        yield from _step(ring, position, chunks, position - 1 - step, segment, add=True)


def all_gather(
    ring: Sequence[int], position: int, chunks: Sequence[Piece], segment: int
) -> Iterator[Step]:
    """Copy ``chunks[i]`` of position i to all; arguments as in `reduce_scatter`."""
    for step in range(len(ring) - 1):
        yield from _step(ring, position, chunks, position - step, segment, add=False)


def _step(
    ring: Sequence[int],
    position: int,
    chunks: Sequence[Piece],
    passed_on: int,
    segment: int,
    add: bool,
) -> Iterator[Step]:
    """Pass chunk number ``passed_on`` to the right, take the one before it from the left."""
    size = len(ring)
    right, left = ring[(position + 1) % size], ring[position - 1]
    outgoing, incoming = chunks[passed_on % size], chunks[(passed_on - 1) % size]
    count = num_segments(max(chunk.length for chunk in chunks), segment)
    for number in range(count):
        yield (
            Receive(left, bounds(incoming, count, number), add),
            Send(right, bounds(outgoing, count, number)),
        )
