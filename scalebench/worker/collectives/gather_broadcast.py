"""Gather and broadcast, the naive way: one rank collects every vector, adds up, hands out the sum.

The rank at the root deals with the others one after the other, a whole vector at a time.

Law: 2(N−1) messages at the root, one after the other; the root sends (N−1)·D bytes, every other
rank D; time 2(N−1)·(α + D/B). What it is good for: to see what the other algorithms gain.
"""

from functools import partial

from scalebench.worker.collectives.execute import Piece, Receive, Schedule, Send, reduce_in_place

ROOT = 0


def schedule(rank: int, world_size: int, length: int, segment: int) -> Schedule:
    """Yield what ``rank`` does; lengths in elements. Nothing is cut, whatever ``segment`` says."""
    whole = Piece(0, length)
    if rank != ROOT:
        yield (Send(ROOT, whole),)
        yield (Receive(ROOT, whole, add=False),)
        return
    others = range(1, world_size)
    yield from ((Receive(other, whole, add=True),) for other in others)
    yield from ((Send(other, whole),) for other in others)


all_reduce = partial(reduce_in_place, schedule=schedule, segment_bytes=None)
