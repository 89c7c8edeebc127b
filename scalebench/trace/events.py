"""The events of one rank's trace as columns, whether they come from a file or from memory."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

Category = Literal[
    "other",
    "cpu_op",
    "user_annotation",
    "runtime",
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "gpu_user_annotation",
]
CATEGORIES: tuple[str, ...] = get_args(Category)
"""Kineto's activity types as far as they are distinguished; ``runtime`` is ``cuda_runtime``,
``cuda_driver``, ``hip_runtime`` and their like. The position is the code in `Events.category`."""


@dataclass(frozen=True)
class Events:
    """Complete events (``ph: X``) of one rank, one entry per column.

    Attributes:
        names: The distinct names; ``name`` holds indices into it. int32 [n].
        category: Index into `CATEGORIES`. int8 [n].
        start_ns: int64 [n].
        end_ns: int64 [n].
        thread: Thread on the host, stream on a GPU. int64 [n].
        correlation: Ties a kernel to the runtime call that launched it; -1: none. int64 [n].
        details: Index of an event → its arguments as Kineto calls them (``Collective name``,
            ``In msg nelems``, ``Input Dims``, ``Input type``, ``External id``, …), of those
            events only that can be communication: `communication_kernels.carries_details`.
        shapes: Index of an operator → ``Input Dims`` as the trace has them.
        types: Index of a matrix product → ``Input type`` likewise.
        rank: Rank that the trace itself claims to be of.
        world_size: Ranks of the job by the trace's own word.
        groups: Name of a process group → its ranks' number, as far as the trace lists them.
        clock_offset_ns: ``start_ns`` plus this is the trace's own time: nanoseconds since 1970
            where the trace says when its clock began.
        num_left_out: Events whose time is none, or cannot be.
        owners: What the file says of whose events are: process, device, rank, as it spells them.
        owner: Index into ``owners``. int32 [n]; None: all events are of one rank.
    """

    names: list[str]
    name: NDArray[np.int32]
    category: NDArray[np.int8]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    thread: NDArray[np.int64]
    correlation: NDArray[np.int64]
    details: dict[int, dict[str, Any]] = field(default_factory=dict)
    shapes: dict[int, Any] = field(default_factory=dict)
    types: dict[int, Any] = field(default_factory=dict)
    rank: int | None = None
    world_size: int | None = None
    groups: dict[str, int] = field(default_factory=dict)
    clock_offset_ns: int = 0
    num_left_out: int = 0
    owners: list[tuple[Any, Any, Any]] = field(default_factory=list)
    owner: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.start_ns)

    def of(self, category: Category) -> NDArray[np.int64]:
        """Return the indices of the events of a category."""
        return np.flatnonzero(self.category == CATEGORIES.index(category))

    def only(self, kept: NDArray[np.bool_]) -> Self:
        """Return the events that are kept; what ties them to their details moves along."""
        place = np.cumsum(kept) - 1
        return replace(
            self,
            name=self.name[kept],
            category=self.category[kept],
            start_ns=self.start_ns[kept],
            end_ns=self.end_ns[kept],
            thread=self.thread[kept],
            correlation=self.correlation[kept],
            details={int(place[i]): d for i, d in self.details.items() if kept[i]},
            shapes={int(place[i]): s for i, s in self.shapes.items() if kept[i]},
            types={int(place[i]): t for i, t in self.types.items() if kept[i]},
            owner=None if self.owner is None else self.owner[kept],
        )
