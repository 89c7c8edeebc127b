"""Double binary tree: two trees at once, half of the vector each (Sanders, Speck & Träff 2009).

In one binary tree half of the ranks are leaves, which send D where an inner rank sends up to 3D:
much of the bandwidth lies idle. So a second tree is laid over the same ranks in which the leaves
of the first are inner ranks, and each tree reduces and broadcasts one half of the vector, cut into
segments that follow one another.

Law: a rank that is a leaf here and an inner rank with two children there sends
D/2 + 3·D/2 = 2D bytes, and takes in as much; 2·⌈log2 N⌉ + k − 1 steps for k segments at most; for
large k the time is about 2·log2(N)·α + 2·D/B: nearly the bandwidth of the ring at the latency of a
tree.

The first tree has rank 0 on top of an in-order tree of the others: a rank whose lowest set bit is
2^i stands at height i where there are enough ranks, and odd ranks are the leaves. The second is the
same tree, shifted by one rank: so odd ranks are inner ones there.
"""

from functools import partial

from scalebench.worker.collectives.execute import reduce_in_place
from scalebench.worker.collectives.schedule import Piece, Schedule, bounds, side_by_side
from scalebench.worker.collectives.tree import Tree, reduce_and_broadcast


def schedule(rank: int, world_size: int, length: int, segment: int) -> Schedule:
    """Return what ``rank`` does; lengths in elements."""
    first, second = two_trees(world_size)
    whole = Piece(0, length)
    return side_by_side(
        reduce_and_broadcast(first, rank, bounds(whole, 2, 0), segment),
        reduce_and_broadcast(second, rank, bounds(whole, 2, 1), segment),
    )


all_reduce = partial(reduce_in_place, schedule=schedule)


def two_trees(num_ranks: int) -> tuple[Tree, Tree]:
    """Return the two trees."""
    parents = [_parent(rank, num_ranks) for rank in range(num_ranks)]
    shifted: list[int | None] = []
    for rank in range(num_ranks):
        parent = parents[rank - 1]
        shifted.append(None if parent is None else (parent + 1) % num_ranks)
    return Tree(tuple(parents)), Tree(tuple(shifted))


def _parent(rank: int, num_ranks: int) -> int | None:
    """Return the parent in the first tree: one of the two ranks 2^i away, None for rank 0.

    Exactly one of them stands one level higher. Where that one is beyond the last rank, the other
    takes its place.
    """
    if rank == 0:
        return None
    reach = rank & -rank
    below, above = rank - reach, rank + reach
    return above if above & 2 * reach and above < num_ranks else below
