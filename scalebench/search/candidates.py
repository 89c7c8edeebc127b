"""Configurations as columns of numbers: what each of them chooses."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

AXES = ("tensor", "context", "expert", "shard", "data", "pipeline")
"""From the innermost of the usual placement to its outermost."""

PRECISIONS = ("float32", "bfloat16")
CHECKPOINTING = ("none", "selective", "full")
SCHEDULES = ("none", "gpipe", "1f1b", "interleaved-1f1b", "looped-bfs", "zero-bubble")
"""Of a pipeline; ``none``: there is none."""


@dataclass(frozen=True)
class Candidates:
    """Configurations as columns of equal length.

    Attributes:
        near_tensor: Ranks of a tensor group that share a node; the others likewise.
        order: Placement: axes from the inside out, as digits of `AXES` after a leading 1.
        zero: ZeRO stage, 0 to 3.
        schedule: Of `SCHEDULES`, by number.
        chunks: Stages on each rank.
        microbatches: Parts of a rank's batch, one after another.
        checkpointing: Of `CHECKPOINTING`, by number.
        precision: Of `PRECISIONS`, by number.
        bucket_mb: Size of gradient buckets, MiB.
        ring: Context groups pass keys and values around (1), or exchange heads (0).
    """

    tensor: Ints
    context: Ints
    expert: Ints
    shard: Ints
    data: Ints
    pipeline: Ints
    near_tensor: Ints
    near_context: Ints
    near_expert: Ints
    near_shard: Ints
    near_data: Ints
    near_pipeline: Ints
    order: Ints
    zero: Ints
    schedule: Ints
    chunks: Ints
    microbatches: Ints
    checkpointing: Ints
    precision: Ints
    bucket_mb: Floats
    ring: Ints

    def __len__(self) -> int:
        return len(self.tensor)

    def take(self, where: npt.NDArray[np.generic]) -> "Candidates":
        """Return some of them: a mask, or places."""
        places = np.flatnonzero(where) if where.dtype == np.bool_ else where
        return Candidates(**{f.name: getattr(self, f.name)[places] for f in fields(self)})

    @property
    def replicas(self) -> Ints:
        """Ranks that divide the samples among them."""
        return self.data * self.shard * self.expert


def joined(parts: Sequence[Candidates]) -> Candidates:
    """Return several one after another."""
    return Candidates(
        **{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Candidates)}
    )
