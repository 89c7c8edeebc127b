"""Short wake-ups of the processors of virtual hosts, so that CPU quotas hold within a millisecond.

The kernel compares what a group has used with its quota when a task stops running, and otherwise
at its tick, every 4 ms at 250 Hz. So a rank that may use 1 ms in every 5 computes for 4 ms, and is
then stopped for 15 ms and more, often while all others wait for it in a collective: no slower core
does that. A process that wakes for a moment makes the kernel change tasks, and so compare.
Source: the kernel's kernel/sched/fair.c, ``account_cfs_rq_runtime``.

Run as ``python -m scalebench.launch.lab.wakeups PROCESSOR...``: one process for each, until
standard input ends.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NoReturn

from scalebench.launch.processes import end_process, interpreter

INTERVAL_S = 0.0005
"""Each wake-up takes about 15 µs of its processor: 3 %."""

_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29


class Wakeups:
    """Processes that wake processors all the time, for as long as this object is open."""

    def __init__(self, processors: Iterable[int]) -> None:
        self.process = subprocess.Popen(
            [*interpreter(), "-m", __name__, *map(str, sorted(processors))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the launcher
        )

    def close(self) -> None:
        """End them."""
        end_process(self.process)


def wake(processor: int, parent: int) -> NoReturn:
    """Wake a processor until the parent ends.

    Before other tasks where that is allowed (root); else like any other, which is nearly as often.
    """
    library = ctypes.CDLL(None, use_errno=True)
    library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    library.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    os.sched_setaffinity(0, {processor})
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    while os.getppid() == parent:
        time.sleep(INTERVAL_S)
    os._exit(0)


def main(processors: list[str]) -> None:
    """Wake processors until standard input ends."""
    parent, children = os.getpid(), []
    for processor in processors:
        child = os.fork()
        if child == 0:
            wake(int(processor), parent)
        children.append(child)
    sys.stdin.buffer.read()
    for child in children:
        os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
