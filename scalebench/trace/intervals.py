"""Interval algebra: union, intersection, difference, length.

A set of intervals is an int64 array of shape ``[n, 2]``: half-open ``[start, end)``, in
nanoseconds. *Tidy* means sorted, disjoint, not touching, none empty; `union` makes any set tidy,
and the other functions take tidy sets and return tidy ones. Everything is vectorised.

Which event lay around a moment on its thread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from scalebench.trace.events import Events

Indices = NDArray[np.int64]

_DEEPEST_NESTING = 8


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
