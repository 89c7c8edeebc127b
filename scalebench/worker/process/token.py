"""Launches that take turns: one of them trains, the others wait without using a processor.

The launches of a round are processes that live at the same time. A token goes from one launch to
the next, and only the launch that has it works. The order is a random one for each cycle, worked
out from a seed, so that every launch knows it and no one has to be asked: in a cycle every launch
that is left has one turn. Rank 0 of each launch waits for the token in a read of its socket, the
other ranks in a barrier of their launch.
"""

import json
import os
import random
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

TOKEN_BYTES = 65_536
RETRY_S = 0.002
"""Until the socket of a launch that is still being started is looked for again."""


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
