"""On which machines the ranks of a script are, and how their clocks stand to one another.

The processes that supervise the script's ranks tell one another over the store of the launch.
"""

import fcntl
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel

from scalebench.worker.measure.alignment import (
    ROUND_TRIPS,
    ClockOffset,
    Exchange,
    clock_name,
    offset_of,
)
from scalebench.worker.process.store_queue import SealedStore

SIOCGIFADDR = 0x8915
"""See netdevice(7)."""


class Place(BaseModel):
    """Where a rank is.

    Attributes:
        clock: What names the machine's clock; empty: nothing does.
    """

    host: str
    local_rank: int
    clock: str


def meet(store: SealedStore, rank: int, world_size: int, identity: dict[str, Any]) -> list[Place]:
    """Tell where this rank is, and return where all are, by rank."""
    own = Place(host=identity["host"], local_rank=identity["local_rank"], clock=clock_name())
    store.set(f"place{rank}", own.model_dump_json())
    return [Place.model_validate_json(store.get(f"place{other}")) for other in range(world_size)]


def sent_by_rank_0(store: SealedStore, own: dict[str, Any] | None) -> dict[str, Any]:
    """Return what rank 0 has to say of the launch.

    ``own``: what it is, on rank 0; None: on the others.
    """
    if own is not None:
        store.set("addresses", json.dumps(own))
    return dict(json.loads(store.get("addresses")))


def group_of(places: Sequence[Place], rank: int) -> tuple[int, int, int]:
    """Return the number of a rank's machine, of machines, and of ranks on its machine."""
    hosts = list(dict.fromkeys(place.host for place in places))
    host = places[rank].host
    return hosts.index(host), len(hosts), sum(place.host == host for place in places)


def compare_clocks(
    store: SealedStore,
    rank: int,
    places: Sequence[Place],
    when: str,
    clock: Callable[[], int] = time.monotonic_ns,
) -> ClockOffset:
    """Compare this rank's clock with rank 0's; every rank has to call this at the same time.

    Ranks that read rank 0's clock exchange nothing. The others ask it one after the other.

    ``places`` are of all ranks; no other comparison in this store has the word ``when``. ``clock``
    tells nanoseconds.
    """
    name = places[0].clock
    others = [r for r, place in enumerate(places) if r and (place.clock != name or not name)]
    if rank == 0:
        for other in others:
            for trip in range(ROUND_TRIPS):
                key = f"{when}/{other}/{trip}"
                store.get(f"{key}/asked")
                store.set(f"{key}/answer", str(clock()))
    if rank not in others:
        return ClockOffset(0, 0, clock(), "shared clock")
    return offset_of([_ask(store, f"{when}/{rank}/{trip}", clock) for trip in range(ROUND_TRIPS)])


def _ask(store: SealedStore, key: str, clock: Callable[[], int]) -> Exchange:
    sent = clock()
    store.set(f"{key}/asked", "")
    there = int(store.get(f"{key}/answer"))
    return Exchange(sent, there, clock())


def own_address() -> str:
    """Return the address of this host on the interface that gloo is told to use.

    Without such an interface, the loopback address.
    """
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    if not interface:
        return "127.0.0.1"
    asked = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, asked)
        except OSError:
            return "127.0.0.1"
    return socket.inet_ntoa(answer[20:24])
