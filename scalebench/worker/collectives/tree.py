"""Reduce up a tree to rank 0, then broadcast down it.

Law: each rank sends D bytes to its parent, if it has one, and D to each child.

- ``shape="binary"``: rank r has the children 2r+1 and 2r+2. With the vector cut into k segments
  that follow one another, 2⌊log2 N⌋ + k − 1 steps; an inner rank takes in 3D and sends 3D, so the
  time is about 2⌊log2 N⌋·α + 3·D/B for large k.
- ``shape="binomial"``: the parent is the rank without its lowest set bit, so in each step of an
  unsegmented reduce (``segment_bytes=None``) half of the ranks that are left hand over to the
  other half: 2⌈log2 N⌉·(α + D/B), the law of the textbooks (Thakur, Rabenseifner & Gropp 2005).
  Rank 0 has log2 N children: cutting gains little.

Few steps, so good for small messages; for large ones the ring sends less.

Every element is summed on rank 0 in the end and copied from there: the result is the same on all
ranks, bit for bit.
"""

from typing import Literal

import torch
import torch.distributed as dist

from scalebench.errors import unknown_name
from scalebench.worker.collectives.execute import SEGMENT_BYTES, reduce_in_place
from scalebench.worker.collectives.schedule import Piece, Schedule
from scalebench.worker.collectives.tree_pipeline import (
    binary_tree,
    binomial_tree,
    reduce_and_broadcast,
    sent_through,
)

Shape = Literal["binary", "binomial"]
SHAPES = {"binary": binary_tree, "binomial": binomial_tree}


def all_reduce(
    tensor: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    shape: Shape = "binary",
    segment_bytes: int | None = SEGMENT_BYTES,
    accumulate: torch.dtype | None = None,
) -> None:
    """Replace ``tensor`` by its sum over the ranks; arguments as in `reduce_in_place`.

    Raises:
        UsageError: As `reduce_in_place`, or there is no such shape.
    """
    if shape not in SHAPES:
        raise unknown_name("shape of a tree", shape, SHAPES)
    reduce_in_place(
        tensor, group, schedule, segment_bytes=segment_bytes, accumulate=accumulate, shape=shape
    )


def schedule(
    rank: int, world_size: int, length: int, segment: int, shape: Shape = "binary"
) -> Schedule:
    """Return what ``rank`` does; lengths in elements."""
    return reduce_and_broadcast(SHAPES[shape](world_size), rank, Piece(0, length), segment)


def sent(rank: int, world_size: int, length: int, shape: Shape = "binary") -> int:
    """Return how many elements ``rank`` sends."""
    return sent_through(SHAPES[shape](world_size), rank, length)
