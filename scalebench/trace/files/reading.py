"""Reads the trace files of a job on all cores, with what a reader of them has to know.

Reads the trace files of a job on all cores, and keeps of each what the job's figures need.

A file of 200,000 events takes a second and tens of megabytes to read, and what is kept of it a
few hundred kilobytes: so files are read by as many processes as there are cores, each one after
the other.

Tools merge the ranks' traces into one file (SGLang's ``merge_profiles`` puts ``[TP00] `` before
each process, TraceLens' ``TraceFuse`` gives each event the argument ``rank``), and a process of
``nn.DataParallel`` drives several devices. What one of them computes hides nothing of another's
communication.
"""

import multiprocessing
import re
import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.machine import num_cores
from scalebench.trace.analysis import Figures, analyse
from scalebench.trace.events import (
    CATEGORIES,
    Calls,
    Events,
    Intervals,
    Timeline,
    intersect,
    intervals,
    none,
    subtract,
    union,
)
from scalebench.trace.files.kineto import read_kineto
from scalebench.trace.files.metadata import RankTrace, in_order
from scalebench.trace.idle import Idleness, idleness_of
from scalebench.trace.operations.classify import timeline_of
from scalebench.trace.operations.gpu_work import Work, gpu_events, work_of
from scalebench.trace.operations.kernel_launches import NEVER, runtime_calls

_TAKEN_FROM = {
    "device": "the number of the device",
    "file name": "the file names",
    "order": "the order given",
}
_MOST_NAMED = 8
_REMEDY = " If they communicate, name them: --communication REGEX."


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


_LABEL = re.compile(r"\s*(\[[^\]]+\]|rank[\s_:=-]*\d+)", re.IGNORECASE)
_ON_DEVICE = CATEGORIES.index("kernel")


@dataclass(frozen=True)
class FilePart:
    """The events of one rank of a file, or of one device.

    Attributes:
        name: ``[TP01]``, ``device 1``; empty: it is the whole file.
        by: What the file was divided by; None: it is the whole file.
    """

    events: Events
    name: str = ""
    by: Literal["rank", "device"] | None = None


def parts_of(events: Events) -> list[FilePart]:
    """Return the ranks of a file, each by itself; else its devices with kernels; else the file."""
    if events.owner is None:
        return [FilePart(events)]
    counting = np.unique(events.owner[events.category > 0])
    owners = [events.owners[code] for code in counting]
    ranks = [rank for _, _, rank in owners]
    if None in ranks:  # an argument of some events is no tool's word for all of them
        ranks = []
    for told in ([_label(process) for process, _, _ in owners], ranks):
        names = sorted({str(one) for one in told if one is not None}, key=in_order)
        if len(names) > 1:
            codes = [counting[[str(one) == name for one in told]] for name in names]
            return _by_rank(events, names, codes)
    return _by_device(events)


def _by_rank(events: Events, names: Sequence[str], codes: Sequence[NDArray[Any]]) -> list[FilePart]:
    assert events.owner is not None
    numbers = [re.findall(r"\d+", name) for name in names]
    alone = all(len(one) == 1 for one in numbers)
    ranks = [int(one[0]) for one in numbers] if alone else []
    parts = []
    for place, (name, own) in enumerate(zip(names, codes, strict=True)):
        part = events.only(np.isin(events.owner, own))
        rank = ranks[place] if len(set(ranks)) == len(names) else None
        label = f"rank {name}" if name.isdigit() else name
        parts.append(FilePart(replace(part, rank=rank), label, "rank"))
    return parts


def _by_device(events: Events) -> list[FilePart]:
    assert events.owner is not None
    on_device = events.category >= _ON_DEVICE
    device_of = np.array([_device(owner) for owner in events.owners], dtype=np.int64)[events.owner]
    devices = np.unique(device_of[events.of("kernel")])
    if len(devices) < 2:
        return [FilePart(events)]
    parts = []
    for device in devices.tolist():
        mine = on_device & (device_of == device)
        host = ~on_device & np.isin(events.owner, _hosts_of(events, np.flatnonzero(mine)))
        part = replace(events.only(mine | host), rank=max(device, 0))
        parts.append(FilePart(part, f"device {device}", "device"))
    return parts


def _hosts_of(events: Events, kernels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the owners on the host whose process launched most of the kernels.

    Where the file tells no launch, that is every owner.
    """
    assert events.owner is not None
    processes = [str(process) for process, _, _ in events.owners]
    calls = events.of("runtime")
    everyone = np.arange(len(processes))
    launched = {
        process: _launched(events, calls[np.isin(events.owner[calls], codes)], kernels)
        for process in sorted({processes[code] for code in np.unique(events.owner[calls])})
        for codes in [np.flatnonzero([one == process for one in processes])]
    }
    if len(launched) < 2 or not any(num for num, _ in launched.values()):
        return everyone
    chosen = max(launched, key=launched.__getitem__)
    strangers = set(launched) - {chosen}
    return everyone[[process not in strangers for process in processes]]


def _launched(
    events: Events, calls: NDArray[np.int64], kernels: NDArray[np.int64]
) -> tuple[int, int]:
    """Return how many of the kernels the calls can have launched, and minus how much earlier.

    Processes count their launches alike, so the same numbers may fit several; the nearest is right.
    """
    others = np.ones(len(events), dtype=bool)
    others[events.of("runtime")] = False
    others[calls] = True
    asked_ns, _ = runtime_calls(events.only(others), (np.cumsum(others) - 1)[kernels])
    found = (asked_ns != NEVER) & (asked_ns <= events.start_ns[kernels])
    return int(found.sum()), -int((events.start_ns[kernels] - asked_ns)[found].sum())


def _label(process: object) -> str | None:
    found = _LABEL.match(process) if isinstance(process, str) else None
    return found[1] if found else None


def _device(owner: tuple[Any, Any, Any]) -> int:
    """Return the device that an event's arguments name, or that its process is called; -1: none."""
    for told in (owner[1], owner[0]):
        if re.fullmatch(r"\d{1,9}", str(told), re.ASCII):
            return int(told)
    return -1


Window = Literal["file", "steps"]
"""``file``: everything in the trace; ``steps``: whole profiler steps only."""


@dataclass(frozen=True)
class ReadTrace:
    """What is kept of a file.

    Attributes:
        timeline: What its rank did, without the sets of computation and copies.
        figures: Taken while those were at hand.
        exposed: Communication in the window that no computation hides; a tidy set.
        num_left_out: Events of the file whose time is none, or cannot be.
        part: Which rank or device of the file this is; empty: the file is of one alone.
        by_device: Whether the file was divided by its devices.
        others: Its other ranks or devices.
        work: What its GPU did; None: the trace has no kernel.
        idle: Why it did nothing; None likewise.
    """

    timeline: Timeline
    figures: Figures
    exposed: Intervals
    num_left_out: int = 0
    part: str = ""
    by_device: bool = False
    others: "tuple[ReadTrace, ...]" = ()
    work: tuple[Work, ...] | None = None
    idle: Idleness | None = None


def read_all(
    files: Sequence[str],
    window: Window,
    num_processes: int | None = None,
    communication: re.Pattern[str] | None = None,
) -> dict[str, ReadTrace | UsageError]:
    """Return what each file says, or why it cannot be used; in the order given.

    ``files`` are paths, each once. At most ``num_processes`` are read at once; None: as many as
    there are cores. Kernels in whose name ``communication`` is found communicate.

    Raises:
        EnvironmentUnfit: A process that read a file was killed.
    """
    most = min(len(files), num_processes or num_cores())
    read = partial(_read_or_refuse, window=window, communication=communication)
    if most < 2:
        return {file: read(file) for file in files}
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(most, mp_context=context, initializer=_leave_ctrl_c_to_parent)
    try:
        return dict(zip(files, pool.map(read, files), strict=True))
    except BrokenProcessPool as error:
        raise EnvironmentUnfit(
            "A process that read a trace was killed, probably because memory ran out. Give fewer "
            "files at once, or shorter traces."
        ) from error
    except BaseException:  # Ctrl-C, SIGTERM: what others read is not waited for
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _leave_ctrl_c_to_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _read_or_refuse(
    file: str, window: Window, communication: re.Pattern[str] | None
) -> ReadTrace | UsageError:
    try:
        return read_trace(file, window, communication)
    except UsageError as error:
        return error


def read_trace(
    file: str, window: Window, communication: re.Pattern[str] | None = None
) -> ReadTrace:
    """Read one file.

    Raises:
        UsageError: It is no trace of torch.profiler's, or has no profiler steps where whole steps
            are asked for.
    """
    events = read_kineto(file)
    if not events.category.any():
        raise UsageError(
            f"{file}: no event has a category of torch.profiler: "
            f"{', '.join(CATEGORIES[1:])}. Record the trace with torch.profiler, and write it with "
            "export_chrome_trace."
        )
    try:
        first, *others = [_read_part(part, window, communication) for part in parts_of(events)]
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from error
    return replace(first, num_left_out=events.num_left_out, others=tuple(others))


def _read_part(part: FilePart, window: Window, communication: re.Pattern[str] | None) -> ReadTrace:
    events, within = part.events, None
    if window == "steps":
        timeline, within, events = whole_steps(events, communication)
    else:
        timeline = timeline_of(events, communication)
    if part.by == "device":  # the host's calls are of all devices
        timeline = replace(timeline, calls=Calls())
    exposed = subtract(timeline.communication, timeline.compute)
    return ReadTrace(
        timeline=replace(timeline, compute=none(), copies=none()),
        figures=analyse(timeline, within),
        exposed=exposed if within is None else intersect(exposed, within),
        part=part.name,
        by_device=part.by == "device",
        work=work_of(events, timeline),
        idle=idleness_of(events, timeline.extent),
    )


def given_twice(names: Sequence[str]) -> list[str]:
    """Name the files that were given more than once."""
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    return [f"{name} was given {names.count(name)} times and is counted once." for name in twice]


def left_out(read: Mapping[str, ReadTrace]) -> list[str]:
    """Say how many events of each file do not count."""
    found = {file: one.num_left_out for file, one in read.items() if one.num_left_out}
    return [
        f"{num} {'event' if num == 1 else 'events'} of {file} without a valid time "
        f"{'is' if num == 1 else 'are'} left out."
        for file, num in found.items()
    ]


def about_ranks(
    traces: Sequence[RankTrace], world_size: int | None, assumed: int | None
) -> list[str]:
    """Say which ranks were given, and how it is known which they are.

    ``world_size`` is by the traces' own word; ``assumed``: ranks that waits were told for, where
    the traces do not say.
    """
    notices = []
    num_ranks = len({trace.rank for trace in traces})
    if world_size is not None and num_ranks < world_size:
        were = "was" if num_ranks == 1 else "were"
        notices.append(f"{num_ranks} of the job's {world_size} ranks {were} given.")
    sources = {trace.rank_from for trace in traces} - {"trace"}
    if len(traces) > 1 and sources:
        told_by = " and ".join(_TAKEN_FROM[source] for source in sorted(sources))
        notices.append(f"Some traces do not say which rank they are of; taken from {told_by}.")
    elif sources == {"order"} and world_size != 1 and _communicates(traces[0].timeline):
        notices.append("The trace does not say which rank it is of; it counts as rank 0.")
    for file in dict.fromkeys(trace.file for trace in traces if trace.part):
        parts = [trace.part for trace in traces if trace.file == file]
        told = _listed(parts)
        notices.append(
            f"{file} holds {len(parts)} ranks or devices, each counted by itself: {told}."
        )
    if num_ranks < len(traces):
        notices.append("Several traces are of the same rank; they are of different jobs or times.")
    if assumed is not None:
        notices.append(
            f"The traces do not say how many ranks the job has; it is taken for the {assumed} "
            "given."
        )
    return notices


def about_kernels(
    traces: Sequence[RankTrace], num_ranks: int, communication: re.Pattern[str] | None
) -> list[str]:
    """Say what of the communication is missing, was not recognised, or may be more."""
    notices = []
    if len({trace.timeline.on_gpu for trace in traces}) > 1:
        notices.append("Some traces show GPU kernels and others none: they cannot be compared.")
    unknown = sum(op.kind == "unknown" for trace in traces for op in trace.timeline.operations)
    if unknown:
        notices.append(f"The kind of {unknown} operations is not known; all totals include them.")
    suspected = [trace.timeline for trace in traces if trace.timeline.unknown]
    if suspected:
        notices.append(
            "Some kernels may be communication but are not known to be; they count as compute."
            + (_REMEDY if num_ranks > 1 and not all(map(_is_silent, suspected)) else "")
        )
    for trace in traces:
        if num := trace.timeline.num_early:
            begin, their = ("kernel begins", "its") if num == 1 else ("kernels begin", "their")
            notices.append(
                f"{num} {begin} before {their} launch on rank {trace.rank}, so {their} times "
                "cannot be true; they count as the trace has them."
            )
    for trace in traces:
        calls = trace.timeline.calls
        if calls.num_unseen:
            have = "has" if calls.num_unseen == 1 else "have"
            notices.append(
                f"{calls.num_unseen} of {calls.num} {calls.backend} calls of rank {trace.rank} "
                f"{have} no {calls.lack} in the trace: its communication is not complete."
            )
    if num_ranks > 1:
        notices += _unrecognised(
            [trace for trace in traces if _is_silent(trace.timeline)], num_ranks
        )
    if communication and not any(trace.timeline.num_named for trace in traces):
        notices.append(
            f"--communication {communication.pattern} is found in the name of no GPU kernel."
        )
    return notices


def _unrecognised(silent: Sequence[RankTrace], num_ranks: int) -> list[str]:
    if not silent:
        return []
    ranks = _listed([str(trace.rank) for trace in silent])
    where = f"trace of rank {ranks}" if len(silent) == 1 else f"traces of ranks {ranks}"
    suspected = any(trace.timeline.unknown for trace in silent)
    which = "the kernels named below" if suspected else "some of its kernels"
    return [
        f"No communication was recognised in the {where}, of a job of {num_ranks} ranks. "
        f"If {which} communicate, name them: --communication REGEX."
    ]


def _is_silent(timeline: Timeline) -> bool:
    return timeline.on_gpu and not timeline.operations and not timeline.calls.num_unseen


def _communicates(timeline: Timeline) -> bool:
    return bool(timeline.operations or timeline.calls.num)


def _listed(items: Sequence[str]) -> str:
    return ", ".join(items[:_MOST_NAMED]) + (", …" if len(items) > _MOST_NAMED else "")
