"""Reads the trace files of a job on all cores, and keeps of each what the job's figures need.

A file of 200,000 events takes a second and tens of megabytes to read, and what is kept of it a
few hundred kilobytes: so files are read by as many processes as there are cores, each one after
the other.
"""

import multiprocessing
import re
import signal
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.machine import num_cores
from scalebench.trace.analysis import Figures, analyse
from scalebench.trace.events import CATEGORIES
from scalebench.trace.files.kineto import read_kineto
from scalebench.trace.files.split import FilePart, parts_of, whole_steps
from scalebench.trace.idle import Idleness, idleness_of
from scalebench.trace.intervals import Intervals, intersect, none, subtract
from scalebench.trace.operations.classify import timeline_of
from scalebench.trace.operations.gpu_work import Work, work_of
from scalebench.trace.timeline import Calls, Timeline

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
        idle=idleness_of(events),
    )
