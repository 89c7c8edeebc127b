"""The traces of one job: which file is of which rank, and what all of them say together."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from scalebench.errors import UsageError
from scalebench.trace.analysis import Figures, Share, together
from scalebench.trace.gpu_work import Work, summed
from scalebench.trace.idle import Idleness
from scalebench.trace.reading import ReadTrace, Window, read_all
from scalebench.trace.timeline import Timeline
from scalebench.trace.waits import JobWaits, RankWait, waits_of

FORMAT = "scalebench.trace/1"

RankSource = Literal["trace", "file name", "order"]

_LARGEST_JOB = 1024
"""Ranks beyond which a number in a file name is taken for something else: a process, a time."""


@dataclass(frozen=True)
class RankTrace:
    """One file of a job.

    Attributes:
        rank_from: Who says that it is of this rank.
        timeline: As `ReadTrace` keeps it.
    """

    file: str
    rank: int
    rank_from: RankSource
    timeline: Timeline


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
        notices: What a reader of the figures has to know.
        waits: Who waited for whom.
    """

    window: Window
    ranks: tuple[RankFigures, ...]
    total: Figures
    world_size: int | None
    refused: tuple[str, ...]
    notices: tuple[str, ...]
    waits: JobWaits = field(default_factory=lambda: JobWaits({}))


def _twice(files: Sequence[str | Path]) -> list[str]:
    names = [str(file) for file in files]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    return [f"{name} was given {names.count(name)} times and is counted once." for name in twice]


def _left_out(read: Mapping[str, ReadTrace]) -> list[str]:
    found = {file: one.num_left_out for file, one in read.items() if one.num_left_out}
    return [
        f"{num} events of {file} have no valid time and are left out."
        for file, num in found.items()
    ]


def analyse_job(files: Sequence[str | Path], window: Window = "file") -> JobFigures:
    """Read and analyse the traces of one job.

    Raises:
        UsageError: None of the files can be used.
    """
    found = read_all(list(dict.fromkeys(str(file) for file in files)), window)
    refused = [str(one) for one in found.values() if isinstance(one, UsageError)]
    read = {file: one for file, one in found.items() if not isinstance(one, UsageError)}
    if not read:
        raise UsageError(" ".join(refused))
    timelines = [(file, one.timeline) for file, one in read.items()]
    traces = sorted(name_ranks(timelines), key=lambda trace: trace.rank)
    world_sizes = {t.world_size for _, t in timelines if t.world_size is not None}
    world_size = world_sizes.pop() if len(world_sizes) == 1 else None
    waits = _waits(traces, read)
    return JobFigures(
        window=window,
        ranks=tuple(_of_rank(trace, read[trace.file], waits) for trace in traces),
        total=together([read[trace.file].figures for trace in traces]),
        world_size=world_size,
        refused=tuple(refused),
        notices=(*_twice(files), *_left_out(read), *_notices(traces, world_size)),
        waits=waits,
    )


def name_ranks(timelines: Sequence[tuple[str, Timeline]]) -> list[RankTrace]:
    """Say which file is of which rank: by its own word, by its name, else by its place."""
    named = [_number_in(Path(file).name, timeline.world_size) for file, timeline in timelines]
    names_tell = None not in named and len(set(named)) == len(named)
    traces = []
    for place, ((file, timeline), number) in enumerate(zip(timelines, named, strict=True)):
        if timeline.rank is not None:
            traces.append(RankTrace(file, timeline.rank, "trace", timeline))
        elif names_tell and number is not None:
            traces.append(RankTrace(file, number, "file name", timeline))
        else:
            traces.append(RankTrace(file, place, "order", timeline))
    return traces


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
                "device": "gpu" if rank.trace.timeline.on_gpu else "cpu",
                "num_steps": len(rank.trace.timeline.steps),
                **_plain(rank.figures),
                "exposed_transfer_s": rank.wait.exposed_transfer_s if rank.wait else None,
                "wait_s": rank.wait.wait_s if rank.wait else None,
                "gpu_work": _kinds(rank.work),
                "gpu_idle": asdict(rank.idle) if rank.idle else None,
                "unknown_kernels": dict(rank.trace.timeline.unknown),
                "unavailable": dict(rank.unavailable),
            }
            for rank in job.ranks
        ],
        "total": {**_plain(job.total), "gpu_work": _kinds(work_of_all(job))},
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


def _plain(figures: Figures) -> dict[str, Any]:
    def named(shares: Sequence[Share], key: str) -> list[dict[str, Any]]:
        return [{key: share.name, **_without_name(share)} for share in shares]

    scalars = asdict(replace(figures, kinds=(), phases=()))
    return {
        **{name: value for name, value in scalars.items() if name not in ("kinds", "phases")},
        "kinds": named(figures.kinds, "kind"),
        "phases": named(figures.phases, "phase"),
    }


def _without_name(share: Share) -> dict[str, Any]:
    return {name: value for name, value in asdict(share).items() if name != "name"}


def _waits(traces: Sequence[RankTrace], read: Mapping[str, ReadTrace]) -> JobWaits:
    if len({trace.rank for trace in traces}) < len(traces):
        return JobWaits({}, "several traces are of the same rank")
    return waits_of(
        {trace.rank: trace.timeline for trace in traces},
        {trace.rank: read[trace.file].exposed for trace in traces},
    )


def _of_rank(trace: RankTrace, read: ReadTrace, waits: JobWaits) -> RankFigures:
    unavailable, figures = {}, read.figures
    if waits.reason is not None:
        unavailable = dict.fromkeys(("exposed_transfer_s", "wait_s"), waits.reason)
    if figures.overlap_ratio is None:
        unavailable["overlap_ratio"] = "there was no communication"
    if figures.comm_compute_ratio is None:
        unavailable["comm_compute_ratio"] = "there was no computation"
    if read.work is None:
        unavailable["gpu_work"] = unavailable["gpu_idle"] = "the trace has no GPU kernels"
    return RankFigures(
        trace, figures, waits.ranks.get(trace.rank), unavailable, read.work, read.idle
    )


def _number_in(name: str, world_size: int | None) -> int | None:
    """Return the rank that a file's name tells; None: it tells none."""
    labelled = re.search(r"rank[-_.=]?(\d+)", name, re.IGNORECASE)
    if labelled:
        return int(labelled[1])
    numbers = [int(digits) for digits in re.findall(r"\d+", name)]
    possible = [number for number in numbers if number < (world_size or _LARGEST_JOB)]
    return possible[-1] if possible else None


def _notices(traces: Sequence[RankTrace], world_size: int | None) -> tuple[str, ...]:
    notices = []
    num_ranks = len({trace.rank for trace in traces})
    if world_size is not None and num_ranks < world_size:
        notices.append(f"{num_ranks} of the job's {world_size} ranks were given.")
    sources = {trace.rank_from for trace in traces} - {"trace"}
    if len(traces) > 1 and sources:
        told_by = " and ".join(sorted(sources))
        notices.append(f"Some traces do not say which rank they are of; taken from {told_by}.")
    if num_ranks < len(traces):
        notices.append("Several traces are of the same rank; they are of different jobs or times.")
    if len({trace.timeline.on_gpu for trace in traces}) > 1:
        notices.append("Some traces show GPU kernels and others none: they cannot be compared.")
    unknown = sum(op.kind == "unknown" for trace in traces for op in trace.timeline.operations)
    if unknown:
        notices.append(f"The kind of {unknown} operations is not known; all totals include them.")
    if any(trace.timeline.unknown for trace in traces):
        notices.append(
            "Some kernels may be communication but are not known to be; they count as compute."
        )
    return tuple(notices)
