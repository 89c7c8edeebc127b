"""Trees: reduce up one to rank 0 and broadcast down it, or two at once, half of the vector each.

Reduce up a tree to rank 0, then broadcast down it.

Law: each rank sends D bytes to its parent, if it has one, and D to each child.

- ``shape="binary"``: rank r has the children 2r+1 and 2r+2. With the vector cut into k segments
  that follow one another, 2⌊log2 N⌋ + k − 1 steps; an inner rank takes in 3D and sends 3D, so the
  time is about 2⌊log2 N⌋·α + 3·D/B for large k.
- ``shape="binomial"``: the parent is the rank without its lowest set bit, so in each step of an
  unsegmented reduce (``segment_bytes=None``) half of the ranks that are left hand over to the
  other half: 2⌈log2 N⌉·(α + D/B), the law of the textbooks (Thakur, Rabenseifner & Gropp 2005).
  Rank 0 has log2 N children: cutting gains little.

Few steps, so good for small messages; for large ones the ring sends less.

Double binary tree: two trees at once, half of the vector each (Sanders, Speck & Träff 2009).

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

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

from scalebench.errors import unknown_name
from scalebench.worker.collectives.execute import (
    Message,
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


@dataclass(frozen=True)
class Tree:
    """A rooted tree over the ranks.

    Attributes:
        parents: Parent of each rank; None for the root.
    """

    parents: tuple[int | None, ...]

    @cached_property
    def children(self) -> list[list[int]]:
        """Children of each rank, in order of rank."""
        return [
            [child for child, parent in enumerate(self.parents) if parent == rank]
            for rank in range(len(self.parents))
        ]

    @cached_property
    def heights(self) -> list[int]:
        """Longest way down from each rank: 0 for a leaf."""
        heights = [0] * len(self.parents)
        for leaf in range(len(self.parents)):
            rank, height = leaf, 0
            while (parent := self.parents[rank]) is not None:
                rank, height = parent, height + 1
                heights[rank] = max(heights[rank], height)
        return heights


def reduce_and_broadcast(tree: Tree, rank: int, whole: Piece, segment: int) -> Iterator[Step]:
    """Yield the steps of ``rank`` that leave the sum of ``whole`` on all ranks.

    A rank of height h sends segment k up in step h + k, when both its subtrees are in, and gets
    the sum back in step 2H − 1 − h + k, H being the height of the root: so the first segments come
    down while the last ones still go up.
    """
    count = num_segments(whole.length, segment)
    heights = tree.heights
    total_height = max(heights)

    def under_way(step: int, child: int, down: bool) -> Piece | None:
        """Return what is on the link above ``child`` in a step, None if nothing is."""
        begin = 2 * total_height - 1 - heights[child] if down else heights[child]
        number = step - begin
        return bounds(whole, count, number) if 0 <= number < count else None

    parent = tree.parents[rank]
    for step in range(2 * total_height - 1 + count if total_height else 0):
        messages: list[Message] = []
        for child in tree.children[rank]:
            if piece := under_way(step, child, down=False):
                messages.append(Receive(child, piece, add=True))
        if parent is not None:
            if piece := under_way(step, rank, down=True):
                messages.append(Receive(parent, piece, add=False))
            if piece := under_way(step, rank, down=False):
                messages.append(Send(parent, piece))
        for child in tree.children[rank]:
            if piece := under_way(step, child, down=True):
                messages.append(Send(child, piece))
        yield tuple(messages)


Shape = Literal["binary", "binomial"]
SHAPES: dict[Shape, Callable[[int], Tree]] = {
    "binary": lambda n: Tree(tuple((rank - 1) // 2 if rank else None for rank in range(n))),
    "binomial": lambda n: Tree(tuple(rank & rank - 1 if rank else None for rank in range(n))),
}


def schedule(
    rank: int, world_size: int, length: int, segment: int, shape: Shape = "binary"
) -> Schedule:
    """Return what ``rank`` does; lengths in elements.

    Raises:
        UsageError: There is no such shape.
    """
    if shape not in SHAPES:
        raise unknown_name("shape of a tree", shape, SHAPES)
    return reduce_and_broadcast(SHAPES[shape](world_size), rank, Piece(0, length), segment)


all_reduce = partial(reduce_in_place, schedule=schedule)


def double_schedule(rank: int, world_size: int, length: int, segment: int) -> Schedule:
    """Return what ``rank`` does; lengths in elements."""
    first, second = two_trees(world_size)
    whole = Piece(0, length)
    return side_by_side(
        reduce_and_broadcast(first, rank, bounds(whole, 2, 0), segment),
        reduce_and_broadcast(second, rank, bounds(whole, 2, 1), segment),
    )


double_all_reduce = partial(reduce_in_place, schedule=double_schedule)


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
