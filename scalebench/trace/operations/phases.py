"""Forward, backward, optimizer: what the host was doing at a moment, by torch's own marks."""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalebench.trace.events import Events
from scalebench.trace.intervals import Indices, Intervals, named, union
from scalebench.trace.operations.names import backend_of
from scalebench.trace.timeline import Phase

_PHASES: tuple[Phase, ...] = ("unknown", "forward", "backward", "optimizer")

_EVALUATE = "autograd::engine::evaluate_function"
OPTIMIZER_STEP = "Optimizer.step"
_ZERO_GRAD = "Optimizer.zero_grad"


@dataclass(frozen=True)
class Phases:
    """The moments at which the phase changed, in their order.

    Attributes:
        starts_ns: int64 [m], rising.
        codes: Position in ``_PHASES``. int8 [m].
    """

    starts_ns: NDArray[np.int64]
    codes: NDArray[np.int8]

    def at(self, moments: Indices) -> list[Phase]:
        """Return the phase of each moment: that of the last mark at or before it."""
        position = np.searchsorted(self.starts_ns, moments, side="right")
        return [_PHASES[code] for code in np.concatenate(([0], self.codes))[position]]


def phases_of(events: Events) -> Phases:
    """Find the phases of one rank.

    Backward begins with a function that the autograd engine evaluates, or an annotation that
    speaks of backward (FSDP gathers there before the engine evaluates anything); the optimizer
    with torch's ``Optimizer.step#…``; forward with an annotation that speaks of forward, or an
    ``aten::`` operator that lies in none of these nor in a collective.
    """
    host = (events.of("cpu_op"), events.of("user_annotation"))
    on_host = np.zeros(len(events), dtype=bool)
    on_host[np.concatenate(host)] = True

    def where(wanted: list[bool]) -> Indices:
        return np.flatnonzero(named(events, wanted) & on_host)

    names = events.names
    optimizer = where([name.startswith(OPTIMIZER_STEP) for name in names])
    resetting = where([name.startswith(_ZERO_GRAD) for name in names])
    backward = where([name.startswith(_EVALUATE) or _speaks_of(name, "back") for name in names])
    collective = where([backend_of(n) is not None or n.startswith("c10d::") for n in names])
    forward = where([name.startswith("aten::") or _speaks_of(name, "for") for name in names])

    not_forward = union(*(_spans(events, indices) for indices in (optimizer, resetting, backward)))
    forward = forward[~_inside(events.start_ns[forward], not_forward)]
    forward = forward[~_inside_on_thread(events, forward, collective)]
    marks = [(forward, 1), (backward, 2), (optimizer, 3)]
    starts = np.concatenate([events.start_ns[indices] for indices, _ in marks])
    codes = np.concatenate([np.full(len(i), code, dtype=np.int8) for i, code in marks])
    order = np.lexsort((codes, starts))
    return Phases(starts[order], codes[order])


def _speaks_of(name: str, phase: str) -> bool:
    """Return whether an annotation names this one phase, and not both."""
    if "::" in name.removeprefix("FSDP::") or name.startswith("<"):
        return False
    return set(re.findall(r"(for|back)ward(?![a-z0-9])", name.lower())) == {phase}


def _spans(events: Events, indices: Indices) -> Intervals:
    return np.column_stack((events.start_ns[indices], events.end_ns[indices]))


def _inside(moments: Indices, spans: Intervals) -> NDArray[np.bool_]:
    """Return which moments lie in a tidy set, both ends included."""
    if len(spans) == 0:
        return np.zeros(len(moments), dtype=bool)
    position = np.searchsorted(spans[:, 0], moments, side="right") - 1
    inside: NDArray[np.bool_] = moments <= spans[np.maximum(position, 0), 1]
    return inside & (position >= 0)


def _inside_on_thread(events: Events, inner: Indices, outer: Indices) -> NDArray[np.bool_]:
    """Return which of ``inner`` begin while one of ``outer`` runs on the same thread."""
    answer = np.zeros(len(inner), dtype=bool)
    for thread in np.unique(events.thread[outer]):
        mine = events.thread[inner] == thread
        spans = union(_spans(events, outer[events.thread[outer] == thread]))
        answer[mine] = _inside(events.start_ns[inner[mine]], spans)
    return answer
