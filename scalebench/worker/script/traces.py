"""The traced blocks of a script's rank: torch's files, read as those of scalebench's own loop."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from scalebench.errors import UsageError
from scalebench.records.measured.rank import Block
from scalebench.records.measured.trace import Trace
from scalebench.spec import Cell
from scalebench.trace.events import Events
from scalebench.trace.files.kineto import read_kineto
from scalebench.worker.measure.trace_record import trace_record
from scalebench.worker.measure.tracing import Capture, marks_of, on_the_steps_clock

LAST_MARK = "scalebench.last step"


class NoTrace(Exception):
    """There is no trace; the text says why."""


def trace_of(cell: Cell, raw: Mapping[str, Any], blocks: Sequence[Block]) -> Trace:
    """Return the trace of a rank's traced blocks.

    Raises:
        NoTrace: There is none.
    """
    if not cell.steps.trace:
        raise NoTrace("tracing was turned off (--no-trace)")
    if raw["trace_failure"]:
        raise NoTrace(raw["trace_failure"])
    wanted = [block.first for block in blocks if block.phase == "traced"]
    stored = {one["first"]: one for one in raw["traces"] if "file" in one}
    if not wanted:
        raise NoTrace("the script ended before steps were traced")
    if any(first not in stored for first in wanted):
        raise NoTrace("not every traced step of this rank was stored")
    try:
        captures = [capture_of(stored[first]) for first in wanted]
        trace = trace_record(captures)
    except (ValueError, UsageError) as error:
        raise NoTrace(f"reading the traced steps failed: {error}") from error
    if trace is None:
        raise NoTrace("the profiler recorded no step")
    return trace


def capture_of(stored: Mapping[str, Any]) -> Capture:
    """Return one traced block, with its time stamps on the machine's monotonic clock.

    Args:
        stored: ``file``, and ``before_ns`` and ``step_ns``: that clock before and inside each mark
            between two steps.
    """
    events, marks = with_spans(read_kineto(stored["file"]))
    if len(marks) != len(stored["step_ns"]):
        raise ValueError("the profiler lost the step markers")
    moved, error_s = on_the_steps_clock(events, marks, stored["before_ns"], stored["step_ns"])
    return Capture(step_ns=stored["step_ns"][:-1], events=moved, clock_error_s=error_s)


def with_spans(events: Events) -> tuple[Events, Any]:
    """Return the events with each mark between two steps made the span of a step.

    Returns:
        The events, and when the marks were, in order.
    """
    marks = marks_of(events)
    starts = events.start_ns[marks].copy()
    if len(marks) == 0:
        return events, starts
    name, end_ns = events.name.copy(), events.end_ns.copy()
    end_ns[marks[:-1]] = starts[1:]
    name[marks[-1]] = len(events.names)
    names = [*events.names, LAST_MARK]
    return replace(events, names=names, name=name, end_ns=end_ns), starts
