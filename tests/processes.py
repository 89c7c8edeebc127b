"""Processes that have to begin or to end."""

import random
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import psutil

LIMIT_S = 10.0
"""By far longer than the end of a killed process takes, on a loaded machine too."""


def wait_for(condition: Callable[[], object], limit_s: float, what: str) -> None:
    """Wait until something is so; fails where it takes longer."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"waited {limit_s} s for {what}"
        time.sleep(0.02)


def listening_at(processes: Iterable[psutil.Process]) -> set[str]:
    """Return the addresses at which processes listen."""
    found: set[str] = set()
    for process in processes:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            sockets = process.net_connections(kind="inet")
            found |= {s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN}
    return found


def free_ports(count: int) -> list[int]:
    """Return ports that are free, below those that the kernel gives to connections of others."""
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with socket.socket() as one, suppress(OSError):
            one.bind(("", port))
            found.append(port)
    return found


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
