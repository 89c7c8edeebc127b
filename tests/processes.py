"""Processes that have to end."""

import time
from collections.abc import Iterable

import psutil

LIMIT_S = 10.0
"""By far longer than the end of a killed process takes, on a loaded machine too."""


def has_ended(process: psutil.Process) -> bool:
    """Tell whether a process runs no more.

    A zombie has ended: how soon an orphan is collected is up to the machine's first process.
    """
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def left_after(processes: Iterable[psutil.Process], limit_s: float = LIMIT_S) -> list[str]:
    """Wait for processes to end; return those that did not, with what they are doing."""
    end = time.monotonic() + limit_s
    running = list(processes)
    while running := [p for p in running if not has_ended(p)]:
        if time.monotonic() > end:
            return [str(p) for p in running]
        time.sleep(0.02)
    return []
