"""The part of a trace that whole profiler steps make up."""

import re
from dataclasses import replace

import numpy as np

from scalebench.errors import UsageError
from scalebench.trace.classify import timeline_of
from scalebench.trace.events import Events
from scalebench.trace.gpu_work import gpu_events
from scalebench.trace.intervals import Intervals, intervals, union
from scalebench.trace.kernel_launches import runtime_calls
from scalebench.trace.timeline import Timeline


def whole_steps(
    events: Events, communication: re.Pattern[str] | None = None
) -> tuple[Timeline, Intervals, Events]:
    """Return the timeline of whole profiler steps, the time that it fills, and its events.

    A GPU runs behind the host: a kernel belongs to the step that launched it, however late it
    ran, and the last step is left out where there are several, because its kernels may be cut off
    at the end of the trace (so does HolisticTraceAnalysis). On CPU, steps are what lies between
    their marks.

    Raises:
        UsageError: The trace has no profiler steps.
    """
    timeline = timeline_of(events, communication)
    steps = timeline.steps
    if len(steps) == 0:
        raise UsageError(
            "the trace has no profiler steps. Call prof.step() after each training step, or "
            "look at the whole file with --window file."
        )
    if not timeline.on_gpu:
        return timeline, union(steps), events
    begin, end = int(steps[0, 0]), int(steps[-1, 0] if len(steps) > 1 else steps[0, 1])
    on_device = gpu_events(events)
    launched_ns, _ = runtime_calls(events, on_device)
    foreign = on_device[(launched_ns < begin) | (launched_ns >= end)]
    kept = np.ones(len(events), dtype=bool)
    kept[foreign] = False
    calls = timeline.calls  # of the whole file: those outside of the steps have kernels as well
    events = events.only(kept)
    timeline = timeline_of(events, communication)
    last_ns = max([end, *(int(spans[-1, 1]) for spans in _busy(timeline) if len(spans))])
    whole = steps[:-1] if len(steps) > 1 else steps
    return replace(timeline, steps=whole, calls=calls), intervals([(begin, last_ns)]), events


def _busy(timeline: Timeline) -> tuple[Intervals, Intervals, Intervals]:
    return timeline.communication, timeline.compute, timeline.copies
