"""The part of a trace that whole profiler steps make up."""

from dataclasses import replace

import numpy as np

from scalebench.errors import UsageError
from scalebench.trace.classify import timeline_of
from scalebench.trace.events import Events
from scalebench.trace.gpu_work import gpu_events
from scalebench.trace.intervals import Intervals, intervals, union
from scalebench.trace.kernel_launches import runtime_calls
from scalebench.trace.timeline import Timeline


def whole_steps(events: Events) -> tuple[Timeline, Intervals, Events]:
    """Return the timeline of whole profiler steps, the time that it fills, and its events.

    A GPU runs behind the host: a kernel belongs to the step that launched it, however late it
    ran, and the last step is left out where there are several, because its kernels may be cut off
    at the end of the trace (so does HolisticTraceAnalysis). On CPU, steps are what lies between
    their marks.

    Raises:
        UsageError: The trace has no profiler steps.
    """
    timeline = timeline_of(events)
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
    events = _only(events, kept)
    timeline = timeline_of(events)
    last_ns = max([end, *(int(spans[-1, 1]) for spans in _busy(timeline) if len(spans))])
    whole = steps[:-1] if len(steps) > 1 else steps
    return replace(timeline, steps=whole), intervals([(begin, last_ns)]), events


def _busy(timeline: Timeline) -> tuple[Intervals, Intervals, Intervals]:
    return timeline.communication, timeline.compute, timeline.copies


def _only(events: Events, kept: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Events:
    """Return the events that are kept; what ties them to their details moves along."""
    place = np.cumsum(kept) - 1
    return replace(
        events,
        name=events.name[kept],
        category=events.category[kept],
        start_ns=events.start_ns[kept],
        end_ns=events.end_ns[kept],
        thread=events.thread[kept],
        correlation=events.correlation[kept],
        details={int(place[i]): d for i, d in events.details.items() if kept[i]},
        shapes={int(place[i]): s for i, s in events.shapes.items() if kept[i]},
    )
