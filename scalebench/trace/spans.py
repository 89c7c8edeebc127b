"""Which event lay around a moment on its thread."""

from dataclasses import dataclass

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

        Args:
            moments: Nanoseconds, shape [m].
            threads: Thread of each moment, shape [m].
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
