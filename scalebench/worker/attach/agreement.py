"""How rank 0's schedule reaches the other ranks: through a store apart from the script's groups.

The other ranks wait for it in a thread of their own, inside the store's own code, which lets go of
the interpreter: their steps are not held up.
"""

from __future__ import annotations

import json
import threading
import time
from datetime import timedelta
from typing import Any

from scalebench.worker.attach.schedule import Schedule

KEY = "schedule"

LISTEN_S = 0.5
"""How long a rank listens before it looks whether it is to stop."""

CLOSE_LIMIT_S = 5.0
"""How long a rank waits at its end for its own thread to stop."""


class Agreement:
    """Sends or receives the schedule.

    Args:
        rank: This rank.
        world_size: N.
        address: ``host`` and ``port`` of the store, which rank 0 opens; None: there is one rank.
        limit_s: How long ranks may take until the schedule is known.

    Attributes:
        received: The schedule, once it is known here.
    """

    def __init__(
        self, rank: int, world_size: int, address: dict[str, Any] | None, limit_s: float
    ) -> None:
        self.rank = rank
        self.received: Schedule | None = None
        self._store: Any = None
        self._listener: threading.Thread | None = None
        self._stop = threading.Event()
        self._address = address
        self._limit = timedelta(seconds=limit_s)
        if world_size > 1 and address is not None:
            if rank == 0:
                self._store = self._open()
            else:
                self._listener = threading.Thread(
                    target=self._listen, name="scalebench", daemon=True
                )
                self._listener.start()

    def _open(self) -> Any:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        address = self._address or {}
        return TCPStore(
            address["host"],
            address["port"],
            is_master=self.rank == 0,
            timeout=self._limit,
            wait_for_workers=False,
        )

    def _listen(self) -> None:
        try:
            self._store = self._open()
            if self._is_told():
                told = json.loads(self._store.get(KEY))
                self.received = None if told is None else Schedule.from_json(told)
        except Exception:  # rank 0 has gone: it, or the launcher, says why
            return

    def _is_told(self) -> bool:
        """Wait for rank 0 to say something; False: this rank ends, or rank 0 has gone."""
        until = time.monotonic() + self._limit.total_seconds()
        while not self._stop.is_set() and time.monotonic() < until:
            before = time.monotonic()
            try:
                self._store.wait([KEY], timedelta(seconds=LISTEN_S))
            except Exception:
                if time.monotonic() - before < LISTEN_S / 2:  # no time-out
                    return False
            else:
                return True
        return False

    def close(self) -> None:
        """Wait for nothing more: a thread that waits while its process ends aborts the process.

        Every end of a script has to come here, that of one that fails, too.
        """
        self._stop.set()
        if self.rank == 0 and self.received is None and self._store is not None:
            self._store.set(KEY, json.dumps(None))
        if self._listener is not None:
            self._listener.join(CLOSE_LIMIT_S)

    @property
    def is_stuck(self) -> bool:
        """Whether the thread did not stop: it waits for a store that rank 0 has not opened."""
        return self._listener is not None and self._listener.is_alive()

    def send(self, schedule: Schedule) -> None:
        """Tell every rank, this one included."""
        if self._store is not None:
            self._store.set(KEY, json.dumps(schedule.to_json()))
        self.received = schedule
