"""Traces made by hand, for tests: one line per event."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scalebench.trace.events import CATEGORIES, Events

US = 1000
"""Nanoseconds of a microsecond: events are written down in microseconds."""


@dataclass
class Event:
    category: str
    name: str
    start: float
    end: float
    thread: int = 1
    correlation: int = -1
    details: dict[str, Any] = field(default_factory=dict)


def kernel(name, start, end, correlation=-1, stream=7, **details):
    return Event("kernel", name, start, end, stream, correlation, details)


def launch(start, correlation, thread=1):
    return Event("runtime", "cudaLaunchKernel", start, start + 1, thread, correlation)


def op(name, start, end, thread=1, **details):
    return Event("cpu_op", name, start, end, thread, details=details)


def annotation(name, start, end, thread=1, **details):
    return Event("user_annotation", name, start, end, thread, details=details)


def events(*rows: Event, **about: Any) -> Events:
    names = list(dict.fromkeys(row.name for row in rows))
    return Events(
        names=names,
        name=np.array([names.index(row.name) for row in rows], dtype=np.int32),
        category=np.array([CATEGORIES.index(row.category) for row in rows], dtype=np.int8),
        start_ns=np.array([round(row.start * US) for row in rows], dtype=np.int64),
        end_ns=np.array([round(row.end * US) for row in rows], dtype=np.int64),
        thread=np.array([row.thread for row in rows], dtype=np.int64),
        correlation=np.array([row.correlation for row in rows], dtype=np.int64),
        details={i: row.details for i, row in enumerate(rows) if row.details},
        **about,
    )
