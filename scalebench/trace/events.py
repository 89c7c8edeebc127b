"""The events of one rank's trace as columns, whether they come from a file or from memory.

Interval algebra: union, intersection, difference, length.

A set of intervals is an int64 array of shape ``[n, 2]``: half-open ``[start, end)``, in
nanoseconds. *Tidy* means sorted, disjoint, not touching, none empty; `union` makes any set tidy,
and the other functions take tidy sets and return tidy ones. Everything is vectorised.

Which event lay around a moment on its thread.

What one rank did when: its collectives, its computation, its steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, TypeVar, get_args

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
Indices = NDArray[np.int64]

_DEEPEST_NESTING = 8
Kind = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
    "send",
    "recv",
    "send_recv",
    "dispatch",
    "combine",
    "put",
    "unknown",
]
MOST_UNSEEN = 0.01
"""Of the calls of a rank."""

Phase = Literal["forward", "backward", "optimizer", "unknown"]


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


def named(events: Events, wanted: list[bool]) -> NDArray[np.bool_]:
    """Return which events carry a name that is wanted: one flag per entry of ``events.names``."""
    chosen: NDArray[np.bool_] = np.asarray(wanted, dtype=bool)
    return chosen[events.name] if wanted else np.zeros(len(events), dtype=bool)


@dataclass(frozen=True)
class Spans:
    """Some of the events, sorted for looking up what contains a moment.

    Attributes:
        indices: Of the events, in the order of (thread, start).
        threads: The distinct threads, rising.
        first_ns: Earliest start.
        keys: Thread and start in one rising number: see `_keys`.
        stride: Distance of two threads in that number.
    """

    events: Events
    indices: Indices
    threads: Indices
    first_ns: int
    keys: Indices
    stride: int

    @classmethod
    def of(cls, events: Events, indices: Indices) -> "Spans":
        """Sort the events with these indices."""
        if len(indices) == 0:
            return cls(events, indices, indices, 0, indices, 1)
        threads, code = np.unique(events.thread[indices], return_inverse=True)
        first_ns = int(events.start_ns[indices].min())
        stride = int(events.end_ns[indices].max()) - first_ns + 2
        keys = code.reshape(-1) * stride + (events.start_ns[indices] - first_ns)
        order = np.argsort(keys, kind="stable")
        return cls(events, indices[order], threads, first_ns, keys[order], stride)

    def containing(self, moments: Indices, threads: Indices) -> Indices:
        """Return the index of the innermost event around each moment on its thread; -1: none.

        Moments are in nanoseconds; both have shape [m].
        """
        answer = np.full(len(moments), -1, dtype=np.int64)
        if len(self.indices) == 0 or len(moments) == 0:
            return answer
        code = np.clip(np.searchsorted(self.threads, threads), 0, len(self.threads) - 1)
        offset = np.clip(moments - self.first_ns, -1, self.stride - 1)
        position = np.searchsorted(self.keys, code * self.stride + offset, side="right") - 1
        open_ = (self.threads[code] == threads) & (offset >= 0)
        for _ in range(_DEEPEST_NESTING):
            open_ &= position >= 0
            candidate = self.indices[np.maximum(position, 0)]
            same_thread = self.events.thread[candidate] == threads
            hit = open_ & same_thread & (self.events.end_ns[candidate] >= moments)
            answer[hit] = candidate[hit]
            open_ &= ~hit & same_thread
            position = position - 1
        return answer


Intervals = NDArray[np.int64]
Name = TypeVar("Name")


def intervals(pairs: Sequence[Sequence[int]] | Sequence[int] | Intervals) -> Intervals:
    """Return pairs (start, end), or a flat list of them, as an array of shape ``[n, 2]``."""
    return np.asarray(pairs, dtype=np.int64).reshape(-1, 2)


def none() -> Intervals:
    """Return the empty set, shape ``[0, 2]``."""
    return np.empty((0, 2), dtype=np.int64)


def union(*sets: Intervals) -> Intervals:
    """Return the tidy set that covers what any of the sets covers; they need not be tidy."""
    spans = np.concatenate(sets) if sets else none()
    spans = spans[spans[:, 1] > spans[:, 0]]
    if len(spans) == 0:
        return none()
    if np.any(spans[1:, 0] < spans[:-1, 0]):
        spans = spans[np.argsort(spans[:, 0], kind="stable")]
    reach = np.maximum.accumulate(spans[:, 1])
    opens = np.concatenate(([True], spans[1:, 0] > reach[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return np.column_stack((spans[opens, 0], reach[closes]))


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Return what both tidy sets cover."""
    first = np.searchsorted(b[:, 1], a[:, 0], side="right")
    behind = np.searchsorted(b[:, 0], a[:, 1], side="left")
    counts = np.maximum(behind - first, 0)
    mine = np.repeat(np.arange(len(a)), counts)
    within = np.arange(len(mine)) - np.repeat(np.cumsum(counts) - counts, counts)
    theirs = first[mine] + within
    starts = np.maximum(a[mine, 0], b[theirs, 0])
    ends = np.minimum(a[mine, 1], b[theirs, 1])
    return np.column_stack((starts, ends))


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Return what the tidy set ``a`` covers and the tidy set ``b`` does not."""
    if len(a) == 0 or len(b) == 0:
        return a
    first = min(a[0, 0], b[0, 0])
    last = max(a[-1, 1], b[-1, 1])
    gaps = np.column_stack((np.append(first, b[:, 1]), np.append(b[:, 0], last)))
    return intersect(a, gaps[gaps[:, 1] > gaps[:, 0]])


def clip(a: Intervals, start: int, end: int) -> Intervals:
    """Return the part of a tidy set that lies in ``[start, end)``."""
    return intersect(a, intervals([(start, end)])) if end > start else none()


def length(a: Intervals) -> int:
    """Return the nanoseconds that a tidy set covers."""
    return int((a[:, 1] - a[:, 0]).sum())


def length_s(a: Intervals) -> float:
    """Return the seconds that a tidy set covers."""
    return length(a) / 1e9


def divided(moments: Intervals, sets: Mapping[Name, Intervals]) -> dict[Name, float]:
    """Return how many nanoseconds of some moments belong to each of several tidy sets.

    A moment that several sets cover is divided equally among them; one that none covers belongs to
    no one. So the result sums to what the sets together cover of ``moments``.

    ``moments`` is a tidy set, and so is each of ``sets``, which may overlap.
    """
    edges = np.unique(np.concatenate([moments.ravel(), *(s.ravel() for s in sets.values())]))
    starts, lengths = edges[:-1], np.diff(edges)
    counted = np.where(_covers(moments, starts), lengths, 0)
    covering = {name: _covers(spans, starts) for name, spans in sets.items()}
    owners = np.maximum(sum(covering.values(), np.zeros(len(starts), dtype=np.int64)), 1)
    return {name: float((counted * covers / owners).sum()) for name, covers in covering.items()}


def _covers(spans: Intervals, times: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 1 for each time that a tidy set covers, and 0 for the others."""
    begun = np.searchsorted(spans[:, 0], times, side="right")
    return begun - np.searchsorted(spans[:, 1], times, side="right")


@dataclass(frozen=True)
class Operation:
    """One collective or point-to-point operation, as one rank saw it.

    Attributes:
        kind: ``dispatch`` and ``combine``: tokens to their experts and back; ``put``: one-sided;
            ``unknown``: certainly communication, but of unknown kind.
        name: As the trace calls it.
        start_ns: When it began on this rank: the kernel, or gloo's annotation.
        end_ns: When it ended on this rank.
        enqueued_ns: When the host asked for it; None: the trace does not tell.
        num_bytes: Handed to the operation by this rank (all-gather: gathered; reduce-scatter:
            before scattering: the *full* size, as nccl-tests counts); None: not known.
        dtype: As torch spells it (``float32``); None: not known.
        group: Name of the process group; None: not known.
        group_size: Ranks in the group; None: not known.
        sequence: Number of the operation within its group, where the trace carries one.
        phase: What the rank was doing when it asked for the operation.
        stream: CUDA stream, or host thread.
    """

    kind: Kind
    name: str
    start_ns: int
    end_ns: int
    enqueued_ns: int | None = None
    num_bytes: int | None = None
    dtype: str | None = None
    group: str | None = None
    group_size: int | None = None
    sequence: int | None = None
    phase: Phase = "unknown"
    stream: int = 0


@dataclass(frozen=True)
class Calls:
    """Calls of a backend that queues kernels, or whose marks are missing, between several ranks.

    Attributes:
        num_unseen: Those of which neither kernel nor copy, or no mark, is in the trace.
        backend: ``NCCL``, ``XCCL``, …
        lack: What the unseen ones have none of.
    """

    num: int = 0
    num_unseen: int = 0
    backend: str = ""
    lack: str = "kernel"

    @property
    def are_missing(self) -> bool:
        """Whether so many are missing that there is no overlap to speak of."""
        return self.num_unseen > MOST_UNSEEN * self.num


@dataclass(frozen=True)
class Timeline:
    """One rank over the whole trace; every set of intervals is tidy.

    Attributes:
        operations: In the order of their start.
        compute: Running kernels other than communication; without a GPU, ``aten::`` operators.
        copies: Copies and fills of a GPU's memory; they count as neither.
        steps: Profiler steps, where the trace has them; not tidy: neighbours may touch.
        annotations: scalebench's own marks: name without ``scalebench.`` → intervals.
        unknown: Kernels that may be communication but are not known to be: name → seconds. They
            are counted as compute.
        apart: Kernels on a stream of their own, likewise.
        num_early: Kernels that begin before their launch: their times cannot be true.
        calls: Of the backend, as the host made them.
        num_named: Kernels that the reader's own ``--communication`` made communication.
        extent: (start, end) of everything in the trace.
        on_gpu: Whether kernels were traced; otherwise everything ran on the host.
        rank: By the trace's own word; None: it does not say.
        world_size: Likewise.
        num_groups: Process groups that the trace lists; 0: it lists none.
    """

    operations: tuple[Operation, ...]
    compute: Intervals
    copies: Intervals = field(default_factory=none)
    steps: Intervals = field(default_factory=none)
    annotations: dict[str, Intervals] = field(default_factory=dict)
    unknown: dict[str, float] = field(default_factory=dict)
    apart: dict[str, float] = field(default_factory=dict)
    num_early: int = 0
    calls: Calls = Calls()
    num_named: int = 0
    extent: tuple[int, int] = (0, 0)
    on_gpu: bool = False
    rank: int | None = None
    world_size: int | None = None
    num_groups: int = 0

    @property
    def communication(self) -> Intervals:
        """The union of all operations."""
        return union(intervals([(op.start_ns, op.end_ns) for op in self.operations]))
