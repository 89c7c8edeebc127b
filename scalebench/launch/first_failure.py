"""Which of several failures came first: the one to report, the others follow from it."""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scalebench.records.probes import ProbeRecord
from scalebench.records.rank import RankError, RankRecord
from scalebench.records.run import Failure

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


@dataclass(frozen=True)
class RankExit:
    """How a rank's process ended.

    Attributes:
        code: Exit code; negative: minus the signal that killed it.
        time_ns: When, on the machine's monotonic clock.
        killed_by_us: The launcher had asked for it by then.
    """

    rank: int
    code: int
    time_ns: int
    killed_by_us: bool


def first_failure(
    records: Sequence[RankRecord | ProbeRecord], exits: Sequence[RankExit], logs: dict[int, Path]
) -> Failure | None:
    """Return the failure that the others follow from, or None when every rank is well.

    A rank that died takes its peers with it: their collectives fail within milliseconds, at times
    before the death itself is noticed. So failures of communication count only when there is no
    other; among the others the earliest is the first. When there is no other, the ranks that had
    to be killed are named: they are those that the communication waited for.

    Args:
        records: What the ranks left; a rank that was killed left nothing.
        exits: How the ranks' processes ended.
        logs: Rank → its log.
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
        number = -end.code
        named = number in set(signal.Signals)
        name = signal.Signals(number).name if named else f"signal {number}"
        return RankError(kind="signal", message=f"killed by {name}", time_ns=end.time_ns)
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
