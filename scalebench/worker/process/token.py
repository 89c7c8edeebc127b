"""Launches that take turns; and the processes that ranks start, found and ended.

Launches that take turns: one of them trains, the others wait without using a processor.

The launches of a round are processes that live at the same time. A token goes from one launch to
the next, and only the launch that has it works. The order is a random one for each cycle, worked
out from a seed, so that every launch knows it and no one has to be asked: in a cycle every launch
that is left has one turn. Rank 0 of each launch waits for the token in a read of its socket, the
other ranks in a barrier of their launch.
"""

import json
import os
import random
import signal
import socket
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from scalebench.worker.process.setup import kernel_option

TOKEN_BYTES = 65_536
RETRY_S = 0.002
"""Until the socket of a launch that is still being started is looked for again."""
GRACE_S = 2.0
"""From SIGTERM to SIGKILL: time to remove what lies in a temporary folder, and the like."""
END_LIMIT_S = 5.0
POLL_S = 0.01

_PR_SET_CHILD_SUBREAPER = 36
_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


def order_of_cycle(cycle: int, num_launches: int, seed: int) -> list[int]:
    """Return the order in which launches have their turns in a cycle."""
    order = list(range(num_launches))
    random.Random(f"{seed}/{cycle}").shuffle(order)
    return order


def next_slot(
    cycle: int, place: int, left: Sequence[int], num_launches: int, seed: int
) -> tuple[int, int] | None:
    """Return the cycle and the place of the turn that follows; None: no one is left.

    ``place`` is that of the launch whose turn it was; ``left`` take no further turn.
    """
    if len(set(left)) == num_launches:
        return None
    order = order_of_cycle(cycle, num_launches, seed)
    rest = order[order.index(place) + 1 :]
    while True:
        for candidate in rest:
            if candidate not in left:
                return cycle, candidate
        cycle += 1
        rest = order_of_cycle(cycle, num_launches, seed)


class Token:
    """What rank 0 of a launch knows of whose turn it is, and how it hears and tells.

    ``place``: of this launch, from 0. ``seed``: of the order. ``limit_s``: how long to wait for a
    turn.
    """

    def __init__(
        self, folder: Path, place: int, num_launches: int, seed: int, limit_s: float
    ) -> None:
        self.place = place
        self.num_launches, self.seed = num_launches, seed
        self.limit_s = limit_s
        self.cycle = 0
        self.left: list[int] = []
        self.has_turn = order_of_cycle(0, num_launches, seed)[0] == place
        self._opened = os.open(folder, os.O_RDONLY)
        short = Path(f"/proc/self/fd/{self._opened}")
        self._addresses = short if short.is_dir() else folder
        self._inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._inbox.bind(self._address(place))
        self._inbox.settimeout(limit_s)

    def __enter__(self) -> "Token":
        return self

    def __exit__(self, *_: object) -> None:
        self._inbox.close()
        os.close(self._opened)

    def wait(self) -> None:
        """Return when it is this launch's turn.

        Raises:
            TimeoutError: It did not come within the limit.
        """
        if not self.has_turn:
            token = json.loads(self._inbox.recv(TOKEN_BYTES))
            self.cycle, self.left = token["cycle"], token["left"]
            self.has_turn = True

    def pass_on(self, last: bool = False) -> None:
        """Let the next launch have its turn.

        Raises:
            TimeoutError: The next launch has no socket within the limit.
        """
        if last:
            self.left.append(self.place)
        found = next_slot(self.cycle, self.place, self.left, self.num_launches, self.seed)
        if found is None:
            return
        self.cycle, place = found
        self.has_turn = place == self.place
        if not self.has_turn:
            self._send(place, json.dumps({"cycle": self.cycle, "left": self.left}).encode())

    def _send(self, place: int, token: bytes) -> None:
        deadline = time.monotonic() + self.limit_s
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as outbox:
            while time.monotonic() < deadline:
                with suppress(FileNotFoundError, ConnectionRefusedError):
                    outbox.sendto(token, self._address(place))
                    return
                time.sleep(RETRY_S)
        raise TimeoutError(f"launch {place} did not take its turn within {self.limit_s:g} s")

    def _address(self, place: int) -> str:
        """Return where a launch's socket is: 107 bytes at most, however long the folder's name."""
        return str(self._addresses / f"turn{place}")


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
