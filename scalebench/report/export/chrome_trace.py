"""The traced steps of a run in the Trace Event format, for Perfetto and chrome://tracing.

A process stands for a rank of a launch, a thread for one kind of what it did: steps, computation,
communication, waiting for data, encoding and decoding, copies, a pipeline's passes. Times are those
of the run folder, put on rank 0's clock; every launch begins at 0, so that launches lie below one
another and their distance in time is not shown. Source: the Trace Event Format document of the
Chromium project (complete events ``X``, metadata events ``M``; times in microseconds).
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from scalebench.analysis.run import StoredRun
from scalebench.errors import UsageError
from scalebench.records.measured.rank import RankRecord
from scalebench.records.measured.trace import Trace, TracedOperation
from scalebench.records.run import CellResult
from scalebench.records.summary import Row, Summary
from scalebench.report.export.measures import row_name
from scalebench.report.words.terms import plain

Event = dict[str, Any]
Span = tuple[int, int]

SETS = ("compute", "data", "codec", "blocked", "copies")
NAMES = {
    "compute": "computation",
    "data": "data",
    "codec": "encoding",
    "blocked": "blocked on sends and receives",
    "copies": "copies",
}
FIRST_LANE = 100
"""Threads from here on are lanes of communication: what overlaps lies in several."""


def export_chrome_trace(run: StoredRun, summary: Summary) -> str:
    """Return the traces of all launches that succeeded.

    Raises:
        UsageError: The run holds none.
    """
    traced = _traced(run)
    if not traced:
        raise UsageError(
            f"{plain(run.paths.root)} holds no traced steps: {_why_none(run, summary)}."
        )
    return _document(traced, summary)


def _why_none(run: StoredRun, summary: Summary) -> str:
    measured = [r for r in run.results.values() if r.cell.purpose == "measure"]
    if "--no-trace" in summary.reproduce:
        return "--no-trace left them out. Run without it, or export another format"
    if not measured:
        return "it trained nothing. Export another format"
    reasons = {rank.trace_unavailable for result in measured for rank in result.ranks}
    if any("--no-trace" in (reason or "") for reason in reasons):
        return "its suites turn tracing off. Export another format"
    told = "; ".join(sorted(plain(reason, 200) for reason in reasons if reason))
    return f"{told or 'no reason is recorded'}. Export another format"


def one_of_each_row(run: StoredRun, summary: Summary) -> str | None:
    """Return the traces of one launch of each row, for the file in the run's folder; None: none."""
    first = {result.cell.row_key: result for result in reversed(_traced(run))}
    return _document(list(reversed(first.values())), summary) if first else None


def _traced(run: StoredRun) -> list[CellResult]:
    measured = [r for r in run.results.values() if r.cell.purpose == "measure"]
    return [r for r in measured if r.status == "ok" and _traces(r)]


def _document(traced: Sequence[CellResult], summary: Summary) -> str:
    rows = {(row.suite, row.case, row.world_size): row for row in summary.rows}
    pairs = [(result, rank, trace) for result in traced for rank, trace in _traces(result)]
    events: list[Event] = []
    for process, (result, rank, trace) in enumerate(pairs, start=1):
        events += _process(process, rank, trace, result, rows[result.cell.row_key])
    about = {
        "run_id": plain(summary.run_id),
        "notices": [plain(notice, 300) for notice in summary.notices],
        "clock": "microseconds after the first traced step of each launch, on rank 0's clock",
    }
    content = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


def _traces(result: CellResult) -> list[tuple[RankRecord, Trace]]:
    return [(rank, rank.trace) for rank in result.ranks if rank.trace is not None]


def _shift_ns(rank: RankRecord, trace: Trace) -> int:
    clock = rank.clock
    return trace.origin_ns if clock is None else clock.on_rank_0(trace.origin_ns)


def _origin_ns(result: CellResult) -> int:
    return min(
        _shift_ns(rank, trace) + min((start for start, _ in trace.steps), default=0)
        for rank, trace in _traces(result)
    )


def _process(
    process: int, rank: RankRecord, trace: Trace, result: CellResult, row: Row
) -> Iterator[Event]:
    shift = _shift_ns(rank, trace) - _origin_ns(result)
    place = f"{row_name(row)} launch {result.cell.repeat} rank {rank.rank}"
    yield _named("process_name", process, 0, place)
    yield {**_named("process_sort_index", process, 0, ""), "args": {"sort_index": process}}
    yield _named("thread_name", process, 0, "steps")
    for number, span in enumerate(trace.steps):
        yield _event(f"step {number}", "step", process, 0, span, shift)
    for thread, field in enumerate(SETS, start=1):
        flat: list[int] = getattr(trace, field) or []
        if flat:
            yield _named("thread_name", process, thread, NAMES[field])
        for span in zip(flat[::2], flat[1::2], strict=True):
            yield _event(NAMES[field], field, process, thread, span, shift)
    yield from _actions(trace, process, shift)
    for lane, operations in enumerate(lanes(trace.operations)):
        thread = FIRST_LANE + lane
        yield _named("thread_name", process, thread, f"communication{f' {lane}' if lane else ''}")
        for op in operations:
            span = (op.start_ns, op.end_ns)
            told = op.model_dump(exclude={"start_ns", "end_ns", "name"}, exclude_none=True)
            event = _event(plain(op.name, 120), "communication", process, thread, span, shift)
            args = {k: plain(v, 200) if isinstance(v, str) else v for k, v in told.items()}
            yield {**event, "args": args}


def _actions(trace: Trace, process: int, shift: int) -> Iterator[Event]:
    thread = len(SETS) + 1
    if trace.actions:
        yield _named("thread_name", process, thread, "pipeline passes")
    for action in trace.actions:
        name = f"{action.kind}{action.microbatch} stage {action.stage}"
        span = (action.start_ns, action.end_ns)
        event = _event(name, "pipeline", process, thread, span, shift)
        told = action.model_dump(include={"kind", "stage", "microbatch", "step"})
        yield {**event, "args": told}


def lanes(operations: Sequence[TracedOperation]) -> list[list[TracedOperation]]:
    """Spread operations over lanes so that none overlaps another in its lane.

    Viewers draw what partly overlaps on one thread wrongly. First fit, in order of the starts.
    """
    found: list[list[TracedOperation]] = []
    for op in sorted(operations, key=lambda op: (op.start_ns, op.end_ns)):
        free = next((lane for lane in found if lane[-1].end_ns <= op.start_ns), None)
        if free is None:
            found.append([op])
        else:
            free.append(op)
    return found


def _named(kind: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _event(name: str, kind: str, process: int, thread: int, span: Span, shift: int) -> Event:
    """Return a complete event; ``ts`` and ``dur`` in microseconds, to the nanosecond."""
    start, end = span
    times = {"ts": (start + shift) / 1e3, "dur": (end - start) / 1e3}
    return {"ph": "X", "name": name, "cat": kind, "pid": process, "tid": thread, **times}
