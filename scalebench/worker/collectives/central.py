"""One rank adds up for all: gather and broadcast, the naive way, and a central parameter server.

Gather and broadcast: one rank collects every vector, adds up, hands out the sum. It deals with the
others one after the other, a whole vector at a time.

Law: 2(N−1) messages at the root, one after the other; the root sends (N−1)·D bytes, every other
rank D; time 2(N−1)·(α + D/B). What it is good for: to see what the other algorithms gain.

Central parameter server: all ranks push to one rank and pull the sum (Li et al. 2014).

The server is one of the ranks and contributes its own vector. All others talk to it at the
same time, segment by segment: its link is the bottleneck.

Law: through the server's link come (N−1)·D bytes and go (N−1)·D bytes; every other rank sends D.
The server hands out nothing before it has everything: time 2(N−1)·D/B_server. With ``overlap`` a
segment is pulled while later ones are pushed: on a full-duplex link the time is half as long, the
bytes are the same.
"""

from functools import partial

from scalebench.errors import UsageError
from scalebench.worker.collectives.execute import (
    Piece,
    Receive,
    Schedule,
    Send,
    Step,
    bounds,
    num_segments,
    reduce_in_place,
)

ROOT = 0


def gather_schedule(rank: int, world_size: int, length: int, segment: int) -> Schedule:
    """Yield what ``rank`` does; lengths in elements. Nothing is cut, whatever ``segment`` says."""
    whole = Piece(0, length)
    if rank != ROOT:
        yield (Send(ROOT, whole),)
        yield (Receive(ROOT, whole, add=False),)
        return
    others = range(1, world_size)
    yield from ((Receive(other, whole, add=True),) for other in others)
    yield from ((Send(other, whole),) for other in others)


gather_all_reduce = partial(reduce_in_place, schedule=gather_schedule, segment_bytes=None)


def schedule(
    rank: int, world_size: int, length: int, segment: int, server: int = 0, overlap: bool = False
) -> Schedule:
    """Yield what ``rank`` does; lengths in elements.

    ``server`` is the rank that adds up; with ``overlap`` it hands out the sum of a segment as soon
    as it is there.

    Raises:
        UsageError: There is no rank ``server``.
    """
    if server not in range(world_size):
        raise UsageError(f"server is {server}; give a rank of the group, 0 to {world_size - 1}.")
    whole = Piece(0, length)
    count = num_segments(length, segment)
    pieces = [bounds(whole, count, number) for number in range(count)]
    workers = [worker for worker in range(world_size) if worker != server]
    push: list[Step]
    pull: list[Step]
    if rank == server:
        push = [tuple(Receive(w, piece, add=True) for w in workers) for piece in pieces]
        pull = [tuple(Send(w, piece) for w in workers) for piece in pieces]
    else:
        push = [(Send(server, piece),) for piece in pieces]
        pull = [(Receive(server, piece, add=False),) for piece in pieces]
    if not overlap:
        yield from push
        yield from reversed(pull)  # the last segment is there when everything is
        return
    yield push[0]
    for later, earlier in zip(push[1:], pull, strict=False):
        yield (*later, *earlier)
    yield pull[-1]


all_reduce = partial(reduce_in_place, schedule=schedule)
