"""The processes that ranks start: found also where they left the rank's session, and ended."""

import os
import signal
import time
from collections.abc import Collection, Sequence
from contextlib import suppress

import psutil

from scalebench.worker.process.setup import kernel_option

GRACE_S = 2.0
"""From SIGTERM to SIGKILL: time to remove what lies in a temporary folder, and the like."""
END_LIMIT_S = 5.0
POLL_S = 0.01

_PR_SET_CHILD_SUBREAPER = 36
_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


def adopt_orphans() -> None:
    """Become the parent of all processes below that lose theirs (Linux; elsewhere nothing)."""
    kernel_option(_PR_SET_CHILD_SUBREAPER, 1)


def descendants(spared: Collection[int] = ()) -> list[psutil.Process]:
    """Return the processes below this one that have not ended, but for some."""
    if hasattr(os, "waitid"):  # where there is no child, not all processes need to be looked at
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return []
    below = psutil.Process().children(recursive=True)
    return [p for p in below if p.pid not in spared and not _has_ended(p)]


def _has_ended(process: psutil.Process) -> bool:
    """Tell whether a process is gone, not its first thread alone: it too is called a zombie then.

    One that uses a GPU is in that state for up to a tenth of a second.
    """
    if _status(process) not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
        return False
    try:
        return process.num_threads() <= 1
    except psutil.Error:
        return True


def _status(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.Error:
        return str(psutil.STATUS_DEAD)


def is_stopped(process: psutil.Process) -> bool:
    """Tell whether SIGSTOP or a debugger holds a process: it heeds SIGKILL alone."""
    return _status(process) in _STOPPED


def above(process: psutil.Process, ranks: Collection[int]) -> int | None:
    """Return which of some processes a process is, or descends from."""
    with suppress(psutil.Error):
        return next((p.pid for p in (process, *process.parents()) if p.pid in ranks), None)
    return None


def signal_all(processes: Sequence[psutil.Process], number: int) -> None:
    """Send a signal to processes; those that are stopped are killed."""
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(signal.SIGKILL if is_stopped(process) else number)


def end_descendants(spared: Collection[int] = ()) -> None:
    """End the processes below this one: SIGTERM first, SIGKILL to what is left after a grace."""
    began, asked = time.monotonic(), set[int]()
    while left := descendants(spared):
        took_s = time.monotonic() - began
        if took_s > GRACE_S + END_LIMIT_S:
            return  # the kernel holds them
        if took_s > GRACE_S:
            signal_all(left, signal.SIGKILL)
        signal_all([process for process in left if process.pid not in asked], signal.SIGTERM)
        asked.update(process.pid for process in left)
        time.sleep(POLL_S)
