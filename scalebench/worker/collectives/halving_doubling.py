"""Recursive halving and doubling (Rabenseifner 2004; Thakur, Rabenseifner & Gropp 2005).

Let P be the largest power of two that is not above N. In step i = 0, 1, …, log2(P)−1 rank r and
rank r XOR 2^i exchange halves of what they are still responsible for: each keeps one half and adds
the other's to it. So the largest messages go to the nearest ranks, and after log2(P) steps each
rank has the sum of 1/P of the vector. The same exchanges in reverse order double it again.

The N−P surplus ranks are folded in first: rank P+j gives its whole vector to rank j, sits out, and
gets the result in the end.

Law: N a power of two: 2·log2(N) steps, each rank sends 2(N−1)/N·D bytes: as few as the ring, with
far fewer steps; time 2·log2(N)·α + 2(N−1)/N·D/B. Otherwise 2·⌊log2 N⌋ + 2 steps; surplus ranks send
D, their partners D more than the others; time + 2(α + D/B).
"""

from collections.abc import Iterator
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
)


def schedule(rank: int, world_size: int, length: int, segment: int) -> Schedule:
    """Yield what ``rank`` does; lengths in elements."""
    whole = Piece(0, length)
    core = 1 << (world_size.bit_length() - 1)
    if rank >= core:
        yield from _pass(whole, segment, to=rank - core)
        yield from _pass(whole, segment, source=rank - core)
        return
    surplus = rank + core if rank + core < world_size else None
    if surplus is not None:
        yield from _pass(whole, segment, source=surplus, add=True)
    pieces = windows(rank, core, length)
    num_steps = len(pieces) - 1
    for step in range(num_steps):
        given = _other_half(pieces[step], pieces[step + 1])
        yield from _exchange(rank ^ 1 << step, given, pieces[step + 1], length, step, segment, True)
    for step in reversed(range(num_steps)):
        taken = _other_half(pieces[step], pieces[step + 1])
        yield from _exchange(
            rank ^ 1 << step, pieces[step + 1], taken, length, step, segment, False
        )
    if surplus is not None:
        yield from _pass(whole, segment, to=surplus)


all_reduce = partial(reduce_in_place, schedule=schedule)


def windows(rank: int, core: int, length: int) -> list[Piece]:
    """Return what ``rank`` is responsible for: the whole vector, then after each halving.

    ``rank`` is below ``core``, a power of two.
    """
    pieces = [Piece(0, length)]
    for step in range(core.bit_length() - 1):
        pieces.append(bounds(pieces[-1], 2, rank >> step & 1))
    return pieces


def _other_half(whole: Piece, half: Piece) -> Piece:
    if half.start == whole.start:
        return Piece(half.stop, whole.stop)
    return Piece(whole.start, half.start)


def _exchange(
    peer: int, given: Piece, taken: Piece, length: int, step: int, segment: int, add: bool
) -> Iterator[Step]:
    count = num_segments(-(-length >> step + 1), segment)
    for number in range(count):
        yield (
            Receive(peer, bounds(taken, count, number), add),
            Send(peer, bounds(given, count, number)),
        )


def _pass(
    whole: Piece, segment: int, *, to: int | None = None, source: int = 0, add: bool = False
) -> Iterator[Step]:
    """Send the vector to a rank or, without ``to``, receive it."""
    count = num_segments(whole.length, segment)
    for number in range(count):
        piece = bounds(whole, count, number)
        yield (Receive(source, piece, add),) if to is None else (Send(to, piece),)
