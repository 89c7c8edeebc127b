"""The traces of one job: which file is of which rank, and what all of them say together.

Transfer and wait in the traces of any job, one file per rank.

The clocks of foreign traces were not aligned by anybody. But an operation that synchronises its
ranks ends on all of them at nearly the same time: the median difference of the ends is the offset
of two clocks, and what the differences scatter by is the error of a wait.
"""

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from scalebench.errors import UsageError
from scalebench.records.measured.trace import ClockAlignment, Trace, TracedOperation
from scalebench.records.rows.steps import Straggler
from scalebench.trace.analysis import Figures, Share, figures_together
from scalebench.trace.events import Intervals, Timeline, intersect, length_s
from scalebench.trace.files.metadata import RankTrace, in_order, name_ranks
from scalebench.trace.files.reading import (
    ReadTrace,
    Window,
    about_kernels,
    about_ranks,
    given_twice,
    left_out,
    read_all,
)
from scalebench.trace.idle import Idleness
from scalebench.trace.operations.gpu_work import Work, summed
from scalebench.trace.operations.matching import SYNCHRONISING, match, stragglers, together

FORMAT = "scalebench.trace/1"

TRACE_FILES = (".json", ".json.gz", ".zst")
"""Ends of the names by which traces in a folder are known."""


@dataclass(frozen=True)
class RankWait:
    """How one rank's exposed communication divides, seconds."""

    exposed_transfer_s: float
    wait_s: float


@dataclass(frozen=True)
class JobWaits:
    """The waits of all ranks of a job.

    Attributes:
        ranks: Rank → its share; empty when they are not known.
        reason: Why they are not known; None: they are.
        clock_error_s: How far a single wait may be wrong because the clocks differ.
        stragglers: Who came last how often.
    """

    ranks: Mapping[int, RankWait]
    reason: str | None = None
    clock_error_s: float = 0.0
    stragglers: tuple[Straggler, ...] = ()


def waits_of(
    timelines: Mapping[int, Timeline],
    exposed: Mapping[int, Intervals],
    world_size: int | None = None,
) -> JobWaits:
    """Tell transfer and wait apart, if the traces of all ranks of each group are there.

    Of ``timelines``, operations and extent are looked at. ``exposed``: rank → tidy set of the
    communication that no computation hides, on its clock. ``world_size``: where a trace does not
    tell.
    """
    if len(timelines) < 2:
        return _unknown("the trace of one rank does not show when the others arrived")
    told = {r: replace(t, world_size=t.world_size or world_size) for r, t in timelines.items()}
    traces = {rank: as_trace(timeline) for rank, timeline in told.items()}
    matched, num_alone = together(traces)
    found = match(traces)
    if found.mismatch:
        return _unknown(f"the ranks' operations differ: {found.mismatch}")
    if not matched:
        knows_size = any(timeline.world_size for timeline in told.values())
        return _unknown(_why_none_matches(traces, knows_size))
    if num_alone:
        return _unknown(f"{num_alone} operations are not in the traces of all their ranks")
    clocks, error_s = clocks_by_ends(traces)
    found = match(traces, clocks)
    shares = {}
    for rank in timelines:
        waiting = found.waiting[rank] + traces[rank].origin_ns
        wait_s = length_s(intersect(exposed[rank], waiting))
        shares[rank] = RankWait(length_s(exposed[rank]) - wait_s, wait_s)
    return JobWaits(shares, None, error_s, tuple(stragglers(found.arrivals)))


def _why_none_matches(traces: Mapping[int, Trace], knows_size: bool) -> str:
    operations = [op for trace in traces.values() for op in trace.operations]
    awaited = [op for op in operations if op.kind in (*SYNCHRONISING, "broadcast")]
    if not awaited:
        return "no operation is known in which ranks wait for each other"
    if all(op.group_size is None for op in awaited):
        whose = "operations go between" if knows_size else "job has"
        return f"the traces do not say how many ranks the {whose}"
    return "no operation is in the traces of all its ranks"


def _unknown(reason: str) -> JobWaits:
    return JobWaits({}, reason)


def as_trace(timeline: Timeline) -> Trace:
    """Return a timeline in the form in which the ranks of a launch store theirs.

    An operation that names no group goes between all ranks, if there are no several groups.
    """
    all_ranks = timeline.world_size if timeline.num_groups < 2 else None
    origin, end = timeline.extent
    starts = timeline.steps[:, 0]
    return Trace(
        origin_ns=origin,
        steps=[(0, end - origin)] * (len(starts) + 1),
        operations=[
            TracedOperation(
                kind=op.kind,
                name=op.name,
                step=int(np.searchsorted(starts, op.start_ns, side="right")),
                ordinal=0,
                start_ns=op.start_ns - origin,
                end_ns=op.end_ns - origin,
                num_bytes=op.num_bytes,
                dtype=op.dtype,
                group=op.group,
                group_size=op.group_size or all_ranks,
                phase=op.phase,
                sequence=op.sequence,
            )
            for op in timeline.operations
        ],
    )


def clocks_by_ends(traces: Mapping[int, Trace]) -> tuple[dict[int, ClockAlignment], float]:
    """Align the ranks' clocks by the ends of their operations.

    Returns:
        Rank → its clock against the first rank's; and half of what the differences of the ends
        scatter by (their inter-quartile range), of the worst rank, seconds.
    """
    matched, _ = together(traces)
    reference = min(traces)
    clocks: dict[int, ClockAlignment] = {}
    worst_ns = 0.0
    for rank in traces:
        apart = [
            (operation[rank].end_ns + traces[rank].origin_ns)
            - (operation[reference].end_ns + traces[reference].origin_ns)
            for operation in matched
            if rank in operation and reference in operation
        ]
        if not apart:
            continue
        scatter_ns = float(np.subtract(*np.percentile(apart, [75, 25]))) / 2
        worst_ns = max(worst_ns, scatter_ns)
        clocks[rank] = ClockAlignment(
            method="operations",
            at_ns=traces[rank].origin_ns,
            offset_ns=round(float(np.median(apart))),
            bound_ns=round(scatter_ns),
        )
    return clocks, worst_ns / 1e9


@dataclass(frozen=True)
class RankFigures:
    """The figures of one file.

    Attributes:
        wait: How its exposed communication divides; None: see ``unavailable``.
        unavailable: What could not be told → why.
        work: What its GPU did; None: the trace has no kernel.
        idle: Why it did nothing; None likewise.
    """

    trace: RankTrace
    figures: Figures
    wait: RankWait | None = None
    unavailable: Mapping[str, str] = field(default_factory=dict)
    work: tuple[Work, ...] | None = None
    idle: Idleness | None = None


@dataclass(frozen=True)
class JobFigures:
    """The figures of all files, by rank.

    Attributes:
        total: Sums over the files.
        world_size: Ranks of the job, by the traces' own word; None: they do not say.
        refused: One line for each file that could not be used.
    """

    window: Window
    ranks: tuple[RankFigures, ...]
    total: Figures
    world_size: int | None
    refused: tuple[str, ...]
    notices: tuple[str, ...]
    waits: JobWaits = field(default_factory=lambda: JobWaits({}))


def analyse_job(
    files: Sequence[str | Path],
    window: Window = "file",
    communication: re.Pattern[str] | None = None,
) -> JobFigures:
    """Read and analyse the traces of one job.

    Raises:
        UsageError: None of the files can be used.
    """
    given = [str(file) for one in files for file in _in_folder(Path(one))]
    found = read_all(list(dict.fromkeys(given)), window, communication=communication)
    refused = [str(one) for one in found.values() if isinstance(one, UsageError)]
    read = {file: one for file, one in found.items() if not isinstance(one, UsageError)}
    if not read:
        raise UsageError(" ".join(refused))
    pairs = _ranks_of(read)
    traces = [trace for trace, _ in pairs]
    world_sizes = {t.timeline.world_size for t in traces if t.timeline.world_size is not None}
    world_size = min(world_sizes) if len(world_sizes) == 1 else None
    assumed = None if world_sizes else _assumed_size(traces)
    num_ranks = world_size or len({trace.rank for trace in traces})
    if num_ranks > 1:  # what runs apart in a job of several ranks may be communication
        pairs = [(_with_suspects(trace), part) for trace, part in pairs]
        traces = [trace for trace, _ in pairs]
    waits = _waits(pairs, world_size or assumed)
    ranks = tuple(_of_rank(trace, part, waits, num_ranks) for trace, part in pairs)
    return JobFigures(
        window=window,
        ranks=ranks,
        total=_total(ranks),
        world_size=world_size,
        refused=tuple(refused),
        notices=(
            *given_twice(given),
            *left_out(read),
            *about_ranks(traces, world_size, assumed if waits.reason is None else None),
            *about_kernels(traces, num_ranks, communication),
        ),
        waits=waits,
    )


def _in_folder(path: Path) -> list[Path]:
    """Return the traces in a folder, those of its folders included; a file as it is."""
    if not path.is_dir():
        return [path]
    inside = sorted(
        (one for one in path.rglob("*") if one.name.endswith(TRACE_FILES) and one.is_file()),
        key=lambda one: in_order(str(one)),
    )
    if not inside:
        raise UsageError(
            f"{path} contains no trace: no file in it ends in {', '.join(TRACE_FILES)}. Give a "
            "trace, or a folder of the traces of one job."
        )
    return inside


def _ranks_of(read: Mapping[str, ReadTrace]) -> list[tuple[RankTrace, ReadTrace]]:
    """Return the ranks of all files with what was read of them, by rank."""
    parts = [(file, part) for file, one in read.items() for part in (one, *one.others)]
    named = name_ranks(
        [(file, part.timeline) for file, part in parts], [part.by_device for _, part in parts]
    )
    pairs = [
        (replace(trace, part=part.part), part)
        for trace, (_, part) in zip(named, parts, strict=True)
    ]
    return sorted(pairs, key=lambda pair: pair[0].rank)


def _with_suspects(trace: RankTrace) -> RankTrace:
    timeline = trace.timeline
    unknown = {**timeline.apart, **timeline.unknown}
    return replace(trace, timeline=replace(timeline, unknown=unknown))


def _assumed_size(traces: Sequence[RankTrace]) -> int | None:
    """Return how many ranks a job has of which the traces say nothing: as many as were given."""
    ranks = {trace.rank for trace in traces}
    return len(ranks) if ranks == set(range(len(traces))) and len(ranks) > 1 else None


def as_json(job: JobFigures) -> dict[str, Any]:
    """Return the figures as ``scalebench trace --json`` prints them; the names are a contract."""
    return {
        "format": FORMAT,
        "window": job.window,
        "world_size": job.world_size,
        "files": [
            {
                "file": rank.trace.file,
                "rank": rank.trace.rank,
                "rank_from": rank.trace.rank_from,
                **({"part": rank.trace.part} if rank.trace.part else {}),
                "device": "gpu" if rank.trace.timeline.on_gpu else "cpu",
                "num_steps": len(rank.trace.timeline.steps),
                **_plain(rank.figures, rank.unavailable),
                "num_calls": rank.trace.timeline.calls.num,
                "num_unseen_calls": rank.trace.timeline.calls.num_unseen,
                "exposed_transfer_s": rank.wait.exposed_transfer_s if rank.wait else None,
                "wait_s": rank.wait.wait_s if rank.wait else None,
                "gpu_work": _kinds(rank.work),
                "gpu_idle": asdict(rank.idle) if rank.idle else None,
                "unknown_kernels": dict(rank.trace.timeline.unknown),
                "unavailable": dict(rank.unavailable),
            }
            for rank in job.ranks
        ],
        "total": {
            **_plain(job.total, unavailable_together(job)),
            "gpu_work": _kinds(work_of_all(job)),
        },
        "clock_error_s": job.waits.clock_error_s if job.waits.ranks else None,
        "stragglers": [straggler.model_dump() for straggler in job.waits.stragglers],
        "refused": list(job.refused),
        "notices": list(job.notices),
    }


def work_of_all(job: JobFigures) -> tuple[Work, ...] | None:
    """Return what the GPUs of all ranks did; None: none of them shows any."""
    known = [rank.work for rank in job.ranks if rank.work is not None]
    return summed(row for rows in known for row in rows) if known else None


def _kinds(work: Sequence[Work] | None) -> list[dict[str, Any]] | None:
    if work is None:
        return None
    rows = summed(work, by_kind=True)
    whole_s = sum(row.total_s for row in rows)
    return [
        {
            "kind": row.kind,
            "count": row.count,
            "total_s": row.total_s,
            "share": row.total_s / whole_s if whole_s else None,
            "flop_per_s": row.flop_per_s,
            "flop_s": row.flop_s,
        }
        for row in rows
    ]


def unavailable_together(job: JobFigures) -> set[str]:
    """Return the figures that no sum over the ranks has, because calls of one are missing."""
    ranks = [rank for rank in job.ranks if rank.trace.timeline.calls.are_missing]
    return {name for rank in ranks for name in rank.unavailable}


def _plain(figures: Figures, unavailable: Container[str]) -> dict[str, Any]:
    def named(shares: Sequence[Share], key: str) -> list[dict[str, Any]]:
        told = map(asdict, shares)
        return [{key: one.pop("name"), **one} for one in told]

    scalars = asdict(replace(figures, kinds=(), phases=()))
    return {
        **{
            name: None if name in unavailable else value
            for name, value in scalars.items()
            if name not in ("kinds", "phases")
        },
        "kinds": named(figures.kinds, "kind"),
        "phases": named(figures.phases, "phase"),
    }


def _waits(pairs: Sequence[tuple[RankTrace, ReadTrace]], world_size: int | None) -> JobWaits:
    if len({trace.rank for trace, _ in pairs}) < len(pairs):
        return JobWaits({}, "several traces are of the same rank")
    for trace, _ in pairs:
        if trace.timeline.calls.are_missing:
            return JobWaits({}, f"calls have no {trace.timeline.calls.lack} in the trace")
    return waits_of(
        {trace.rank: trace.timeline for trace, _ in pairs},
        {trace.rank: part.exposed for trace, part in pairs},
        world_size,
    )


def _of_rank(trace: RankTrace, read: ReadTrace, waits: JobWaits, num_ranks: int) -> RankFigures:
    unavailable, figures, calls = {}, read.figures, trace.timeline.calls
    if waits.reason is not None:
        unavailable = dict.fromkeys(("exposed_transfer_s", "wait_s"), waits.reason)
    if figures.overlap_ratio is None:
        unavailable["overlap_ratio"] = (
            "there was no communication"
            if num_ranks == 1 or not trace.timeline.on_gpu
            else f"no communication was recognised in the trace, of a job of {num_ranks} ranks"
        )
    if figures.comm_compute_ratio is None:
        unavailable["comm_compute_ratio"] = "there was no computation"
    if trace.timeline.calls.are_missing:
        unseen = ["overlap_ratio", "comm_compute_ratio"]
        if figures.comm_s == 0:
            unseen += ["comm_s", "overlap_s", "exposed_comm_s", "idle_s"]
        reason = f"{calls.num_unseen} of {calls.num} {calls.backend} calls have no {calls.lack}"
        unavailable |= dict.fromkeys(unseen, reason)
    if read.work is None:
        unavailable["gpu_work"] = unavailable["gpu_idle"] = "the trace has no GPU kernels"
    return RankFigures(
        trace, figures, waits.ranks.get(trace.rank), unavailable, read.work, read.idle
    )


def _total(ranks: Sequence[RankFigures]) -> Figures:
    total = figures_together([rank.figures for rank in ranks])
    if any(rank.trace.timeline.calls.are_missing for rank in ranks):
        total = replace(total, overlap_ratio=None, comm_compute_ratio=None)
    return total
