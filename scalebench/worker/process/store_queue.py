"""Messages over a store of keys and values: the one thing that every process of a world can reach.

The session sends to each process in turn: keys ``to/<rank>/0``, ``to/<rank>/1``, … What processes
tell comes in under keys that a shared counter hands out, so that one reader meets them in the order
in which they came. A message is taken out of the store by its reader. Readers wait inside the
store's own call and use no processor meanwhile.

Messages are JSON, compressed, and in parts where they are large: a store refuses values of more
than a few megabytes.
"""

import json
import zlib
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from scalebench.spec.world import Rendezvous

PART_BYTES = 4 << 20
MAX_MESSAGE_BYTES = 1 << 30
"""What a message may unpack to: more is no message of scalebench's."""

LOST_AFTER = timedelta(seconds=30)
"""A sender that has taken a number and written nothing for so long has been killed in between."""

NO_LIMIT = timedelta(days=365)


class StoreUnreachable(Exception):
    """The store is gone, or was never there."""


def open_store(rendezvous: Rendezvous, limit: timedelta) -> Store:
    """Connect to the store of a world.

    Args:
        rendezvous: Where it is.
        limit: How long to wait for it, and for keys in it.

    Raises:
        StoreUnreachable: It is not there.
    """
    try:
        store = TCPStore(rendezvous.host, rendezvous.port, None, False, limit, False)
    except (RuntimeError, ValueError) as error:
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise StoreUnreachable(f"{rendezvous.host}:{rendezvous.port}: {reason}") from None
    return PrefixStore(rendezvous.prefix, store)


class StoreQueue:
    """One process's way to write to and to read from the others."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.num_sent: dict[int, int] = {}
        self.num_written = 0

    def send(self, rank: int, message: dict[str, Any]) -> None:
        """Write to one process; only the session does."""
        number = self.num_sent.get(rank, 0)
        self.num_sent[rank] = number + 1
        self._write(f"to/{rank}/{number}", message)

    def tell(self, rank: int, message: dict[str, Any]) -> None:
        """Write to the session."""
        name = f"of/{rank}/{self.num_written}"
        self.num_written += 1
        self._write(name, message)
        number = self.store.add("told", 1) - 1
        self.store.set(f"from/{number}", name)

    def received(self, rank: int, number: int) -> dict[str, Any]:
        """Wait for a message to a process, by its number, and take it."""
        return self._take(f"to/{rank}/{number}")

    def told(self, number: int) -> dict[str, Any] | None:
        """Wait for a message to the session, by its number, and take it; None: it is lost."""
        key = f"from/{number}"
        while True:
            try:
                self.store.wait([key], LOST_AFTER)
                break
            except RuntimeError as error:
                if "timeout" not in str(error):
                    raise
                if self.store.add("told", 0) > number and not self.store.check([key]):
                    return None
        name = self.store.get(key).decode()
        self.store.delete_key(key)
        return self._take(name)

    def _write(self, name: str, message: dict[str, Any]) -> None:
        data = zlib.compress(json.dumps(message).encode(), 1)
        parts = [data[i : i + PART_BYTES] for i in range(0, len(data), PART_BYTES)]
        for index, part in enumerate(parts):
            self.store.set(f"{name}/{index}", part)  # type: ignore[arg-type]  # it takes bytes
        self.store.set(name, str(len(parts)))

    def _take(self, name: str) -> dict[str, Any]:
        keys = [f"{name}/{index}" for index in range(int(self.store.get(name)))]
        data = b"".join(self.store.get(key) for key in keys)
        for key in (name, *keys):
            self.store.delete_key(key)
        unpacked = zlib.decompressobj().decompress(data, MAX_MESSAGE_BYTES)
        return dict(json.loads(unpacked))
