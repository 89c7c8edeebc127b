"""What became of a launch that is over: the first failure, which the others follow from."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from scalebench.errors import signal_name
from scalebench.launch.ranks import RankExit, Ranks
from scalebench.records.measured.probes import ProbeRecord
from scalebench.records.measured.rank import RankError, RankRecord
from scalebench.records.run import Failure
from scalebench.spec import Job, SharedLaunch

MOST_PLACES = 4
LOG_TAIL_LINES = 15
LOG_TAIL_BYTES = 8192
STACKS_BYTES = 1 << 16
PROFILER_NOTE = "USDT:"
"""How the lines begin by which torch's profiler tells tracing tools that it starts and ends."""

_WATCHDOG = (
    re.compile(r"Watchdog caught (collective operation timeout: .*)"),
    re.compile(r"watchdog thread terminated with exception: (.*)"),
)
"""What NCCL's process group writes before it ends the process by SIGABRT."""
_FRAME = re.compile(r'^  File "([^"\n]+)", line (\d+) in (.*)$', re.M)
_LIBRARY = re.compile(r"/site-packages/|/dist-packages/|/lib/python3|/scalebench/|^<frozen ")
_KILLED = re.compile(r"SIGKILL|signal: Killed|exited unexpectedly")
"""In the message of a failure: a process was killed, or torch's DataLoader lost a worker."""


def what_went_wrong(
    job: Job,
    ranks: Ranks,
    in_time: bool,
    records: Sequence[RankRecord | ProbeRecord],
    logs: Mapping[int, Path],
    positions: Mapping[int, str],
) -> Failure | None:
    """Return the first failure of a launch that is over, or None: it succeeded.

    ``positions``: rank → the collectives that it had called when its time was over, as it told.
    """
    records = [record for record in records if not _came_of_the_end(record, ranks)]
    essential = [record for record in records if record.rank not in ranks.dispensable]
    failure = first_failure(essential, ranks.essential_exits, dict(logs))
    if failure is not None and failure.kind == "peer":  # follows from what a lost rank did
        failure = first_failure(records, ranks.exits, dict(logs))
    if failure is None and not in_time and len(records) < job.num_processes:
        called = {rank: int(text) for rank, text in positions.items() if text.isdigit()}
        failure = _out_of_time(job, sorted(ranks.late), logs, called)
    return None if failure is None else _explained(failure, ranks)


def ranks_lost(
    ranks: Ranks, records: Sequence[RankRecord | ProbeRecord], logs: Mapping[int, Path]
) -> list[Failure]:
    """Return what became of the ranks that failed in a launch that went on without them."""
    found = (
        first_failure(
            [record for record in records if record.rank == rank],
            [end for end in ranks.exits if end.rank == rank],
            dict(logs),
        )
        for rank in sorted(ranks.dispensable)
    )
    return [_explained(failure, ranks) for failure in found if failure is not None]


def _came_of_the_end(record: RankRecord | ProbeRecord, ranks: Ranks) -> bool:
    """Tell whether a rank's error is only what it made of being told to end."""
    told_ns = ranks.ending_ns
    return record.error is not None and told_ns is not None and record.error.time_ns > told_ns


def _explained(failure: Failure, ranks: Ranks) -> Failure:
    """Return a failure with what caused it, where the machine knows more than the ranks do."""
    if ranks.stopped and failure.kind in ("peer", "limit"):
        first = min(ranks.stopped)
        names = (
            f"rank {rank} was stopped (process {pid}: by SIGSTOP or a debugger)"
            for rank, pid in sorted(ranks.stopped.items())
        )
        message = "; ".join([failure.message, *names])
        return failure.model_copy(update={"rank": first, "message": message})
    if ranks.out_of_memory is None or not _KILLED.search(failure.message):
        return failure
    message = f"{failure.message}: {ranks.out_of_memory}"
    return failure.model_copy(update={"kind": "oom", "message": message})


def _out_of_time(
    job: Job, late: Sequence[int], logs: Mapping[int, Path], called: Mapping[int, int]
) -> Failure:
    """Return the failure of ranks that hang, the one that the others wait for first."""
    message = (
        f"still running after the time limit of {job.limit_s:g} s: rank "
        f"{', '.join(map(str, late))} of {job.world_size}"
    )
    missing = who_is_missing(late, called)
    if missing:
        furthest = max(called.values())
        names = ", ".join(map(str, missing))
        message += f"; rank {names} never reached collective {furthest}, where the others wait"
    message += _where(late, logs)
    first = (missing or late)[0]
    return Failure(rank=first, kind="limit", message=message, log_tail=log_tail(logs[first]))


def _where(late: Sequence[int], logs: Mapping[int, Path]) -> str:
    """Say where ranks hang, by the stacks that they have written; those in one place together."""
    places: dict[str, list[str]] = {}
    for rank in late:
        place = where_it_hangs(logs[rank])
        if place is not None:
            places.setdefault(place, []).append(str(rank))
    told = [f"; rank {', '.join(ranks)} at {place}" for place, ranks in places.items()]
    return "".join(told[:MOST_PLACES])


def who_is_missing(late: Sequence[int], called: Mapping[int, int]) -> list[int]:
    """Return the ranks that others wait for; none: not known.

    Args:
        late: The ranks that were still running.
        called: Rank → collectives that it has called. One that does not say is held up where not
            even its other threads run, and has not called the next one.
    """
    if not called:
        return []
    furthest = max(called.values())
    behind = [rank for rank in late if called.get(rank, -1) < furthest]
    return behind if len(behind) < len(late) else []


def why_not_shared(
    shared: SharedLaunch,
    exits: Sequence[RankExit],
    records: Sequence[Sequence[RankRecord]],
    in_time: bool,
) -> str | None:
    """Say why a shared launch cannot be used, or None: every rank of every cell is well."""
    errors = [
        (record.error.kind == "peer", record.error.time_ns, cell, record.error.message)
        for cell, of_cell in zip(shared.cells, records, strict=True)
        for record in of_cell
        if record.error is not None
    ]
    if errors:
        _, _, cell, message = min(errors, key=lambda found: found[:2])
        return f"{cell.case} at N={cell.world_size}: {message}"
    if not in_time:
        return f"still running after {shared.limit_s:g} s"
    killed = [end for end in exits if end.code and not end.killed_by_us]
    if killed:
        place, rank = shared.places()[min(killed, key=lambda end: end.time_ns).rank]
        cell = shared.cells[place]
        return f"{cell.case} at N={cell.world_size}: rank {rank} ended without a result"
    missing = [
        cell
        for cell, of_cell in zip(shared.cells, records, strict=True)
        if len(of_cell) != cell.num_processes
    ]
    if missing:
        return f"{missing[0].case} at N={missing[0].world_size}: a rank left no record"
    return None


def first_failure(
    records: Sequence[RankRecord | ProbeRecord], exits: Sequence[RankExit], logs: dict[int, Path]
) -> Failure | None:
    """Return the failure that the others follow from, or None when every rank is well.

    A rank that died takes its peers with it: their collectives fail within milliseconds, at times
    before the death itself is noticed. So failures of communication count only when there is no
    other; among the others the earliest is the first. When there is no other, the ranks that had
    to be killed are named: they are those that the communication waited for.
    """
    recorded = {record.rank for record in records}
    errors = [(record.rank, record.error) for record in records if record.error]
    errors += [
        (end.rank, _error_of_exit(end))
        for end in exits
        if not end.killed_by_us and end.rank not in recorded
    ]
    errors = [(rank, _with_watchdog(error, logs[rank])) for rank, error in errors]
    if not errors:
        return None
    rank, error = min(errors, key=lambda pair: (pair[1].kind == "peer", pair[1].time_ns))
    silent = [str(end.rank) for end in exits if end.killed_by_us and end.rank not in recorded]
    waited_in_vain = error.kind == "peer" and silent
    blame = f" (rank {', '.join(silent)} never answered)" if waited_in_vain else ""
    return Failure(
        rank=rank,
        kind=error.kind,
        message=error.message + blame,
        traceback=error.traceback,
        log_tail=log_tail(logs[rank]),
    )


def _error_of_exit(end: RankExit) -> RankError:
    if end.code < 0:
        message = f"killed by {signal_name(-end.code)}"
        return RankError(kind="signal", message=message, time_ns=end.time_ns)
    message = f"ended with exit code {end.code} and left no record"
    return RankError(kind="exit", message=message, time_ns=end.time_ns)


def _with_watchdog(error: RankError, log: Path) -> RankError:
    """Return the error of a rank with what NCCL's watchdog has said before it ended its process.

    A collective's time-out follows from what another rank does; running out of memory does not.
    """
    if error.kind not in ("signal", "exit"):
        return error
    text = _end_of(log, STACKS_BYTES)
    found = next(filter(None, (pattern.search(text) for pattern in _WATCHDOG)), None)
    if found is None:
        return error
    said = found[1].strip()
    timed_out = said.startswith("collective operation timeout")
    kind = "peer" if timed_out else "oom" if "out of memory" in said else error.kind
    message = f"{error.message} by NCCL's watchdog: {said}"
    return error.model_copy(update={"kind": kind, "message": message})


def log_tail(log: Path) -> str:
    """Return the last lines of a log, or an empty text when there is none.

    The profiler's note that it starts is left out: it says nothing of a failure.
    """
    lines = _end_of(log, LOG_TAIL_BYTES).splitlines()
    return "\n".join([x for x in lines if not x.startswith(PROFILER_NOTE)][-LOG_TAIL_LINES:])


def _end_of(log: Path, num_bytes: int) -> str:
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - num_bytes))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def where_it_hangs(log: Path) -> str | None:
    """Return the innermost line of a rank's own code that its log's last stack names.

    Args:
        log: Ends with what `faulthandler` wrote of all threads, the main one last.

    Returns:
        For example ``train.py:14 in main``: where all is a library's code, its innermost line. None
        where the log holds no stack.
    """
    _, found, stack = _end_of(log, STACKS_BYTES).rpartition("(most recent call first):\n")
    frames = _FRAME.findall(stack) if found else []
    own = [frame for frame in frames if not _LIBRARY.search(frame[0])]
    for file, line, function in [*own, *frames][:1]:
        return f"{Path(file).name}:{line} in {function}"
    return None
