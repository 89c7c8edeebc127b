"""How rank 0's schedule reaches the other ranks: through a store apart from the script's groups.

The other ranks wait for it in a thread of their own, inside the store's own code, which lets go of
the interpreter: their steps are not held up.
"""

from __future__ import annotations

import hmac
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from scalebench.worker.attach.timing.schedule import Schedule

KEY = "schedule"
END = "end{rank}"

SIGNATURE_CHARACTERS = 64

LISTEN_S = 0.5
"""How long a rank listens before it looks whether it is to stop."""

CLOSE_LIMIT_S = 5.0
"""How long a rank waits at its end for its own thread to stop."""


def store_at(address: dict[str, Any], limit_s: float) -> Any:
    """Connect to the store at ``host`` and ``port``, which the supervising process serves."""
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    limit = timedelta(seconds=limit_s)
    store = TCPStore(address["host"], address["port"], timeout=limit, wait_for_workers=False)
    return PrefixStore("scalebench", store)


class Agreement:
    """Sends or receives the schedule.

    ``connect`` opens a connection to the store that no other thread uses; None: there is one rank.
    ``limit_s``: how long ranks may take until the schedule is known. They sign it with ``key``.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        connect: Callable[[], Any] | None,
        limit_s: float,
        key: str = "",
    ) -> None:
        self.rank = rank
        self._world_size = world_size
        self.received: Schedule | None = None
        self._store: Any = None
        self._listener: threading.Thread | None = None
        self._stop = threading.Event()
        self._connect = connect
        self._limit_s = limit_s
        self._key = key
        if world_size > 1 and connect is not None:
            if rank == 0:
                self._store = connect()
            else:
                self._listener = threading.Thread(
                    target=self._listen, name="scalebench", daemon=True
                )
                self._listener.start()

    def _listen(self) -> None:
        try:
            assert self._connect is not None
            self._store = self._connect()
            if self._is_sent():
                told = json.loads(self._unsealed(self._store.get(KEY).decode()))
                self.received = None if told is None else Schedule.from_json(told)
        except Exception:  # rank 0 has gone: it, or the launcher, says why
            return

    def _is_sent(self) -> bool:
        """Wait for rank 0 to say something; False: this rank ends, or rank 0 has gone."""
        until = time.monotonic() + self._limit_s
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
            self._store.set(KEY, self._sealed(json.dumps(None)))
        if self._listener is not None:
            self._listener.join(CLOSE_LIMIT_S)

    @property
    def is_stuck(self) -> bool:
        """Whether the thread did not stop: it still connects to the store."""
        return self._listener is not None and self._listener.is_alive()

    def send(self, schedule: Schedule) -> None:
        """Tell every rank, this one included."""
        if self._store is not None:
            self._store.set(KEY, self._sealed(json.dumps(schedule.to_json())))
        self.received = schedule

    def tell_end(self) -> None:
        """Tell every rank that this one has measured everything and ends."""
        key = END.format(rank=self.rank)
        with suppress(Exception):  # it is not served any more
            if self._store is not None:
                self._store.set(key, self._sealed(END))
                self._store.check([key])  # is answered once it is there: a set waits for nothing

    def others_end(self) -> bool:
        """Tell whether another rank has ended so: what fails after that may fail because of it."""
        if self._store is None:
            return False
        ended = [END.format(rank=r) for r in range(self._world_size) if r != self.rank]
        try:
            told = [self._store.get(key).decode() for key in ended if self._store.check([key])]
            return any(self._unsealed(one) == END for one in told)
        except Exception:  # forged, or no longer served
            return False

    def _sealed(self, text: str) -> str:
        """Return a text with its signature before it: others on this machine can write as well."""
        return hmac.new(self._key.encode(), text.encode(), "sha256").hexdigest() + text

    def _unsealed(self, sealed: str) -> str:
        text = sealed[SIGNATURE_CHARACTERS:]
        if not hmac.compare_digest(sealed.encode(), self._sealed(text).encode()):
            raise ValueError("not signed by rank 0")
        return text
