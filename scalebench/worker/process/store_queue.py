"""Messages over a store of keys and values: the one thing that every process of a world can reach.

The session sends to each process in turn: keys ``to/<rank>/0``, ``to/<rank>/1``, … What processes
tell comes in under keys that a shared counter hands out, so that one reader meets them in the order
in which they came. A message is taken out of the store by its reader. Readers wait inside the
store's own call and use no processor meanwhile.

Anybody who can connect to the store may read it and write to it. So every message is signed with
the secret of the world, together with its name, which has its direction, rank and number in it, and
with a number that either end has drawn for this session: none can be made up, repeated, taken from
an earlier session or sent back. What is not signed is not even unpacked (`Forged`).

Messages are JSON, compressed, and in parts where they are large: a store refuses values of more
than a few megabytes.

A listener: a process that waits for messages in the store and passes them on over a channel.

Waiting for a message blocks the process that waits. So a process with more to do than to wait forks
a listener, and hears from it through a socket.

Which network interface the ranks of a world talk on.
"""

import hashlib
import ipaddress
import json
import os
import re
import secrets
import signal
import socket
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import psutil
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from scalebench.errors import EnvironmentUnfit
from scalebench.records.files import Channel
from scalebench.records.paths import LaunchPaths
from scalebench.records.secret import ADVICE, Forged, is_signed, seal, sign, unseal
from scalebench.spec import Job
from scalebench.spec.world import Rendezvous
from scalebench.worker.process.setup import die_with_parent

PART_BYTES = 4 << 20
MAX_MESSAGE_BYTES = 1 << 30
"""What a message may unpack to: more is no message of scalebench's."""

LOST_AFTER = timedelta(seconds=30)
"""A sender that has taken a number and written nothing for so long has been killed in between."""

MOST_LOST = 3
"""So many messages may be lost one after another: of more, no one has ever meant to write one."""

NO_LIMIT = timedelta(days=365)
CONNECT_LIMIT = timedelta(seconds=300)
POLL_S = 0.2
BACKLOG = 4096
_TOLD = re.compile(r"of/(\d{1,9})/(\d{1,12})", re.ASCII)


class StoreUnreachable(Exception):
    """The store is gone, or was never there."""


def listen(address: str, port: int) -> socket.socket:
    """Return a socket that listens at one address, and at no other of this machine.

    Left to itself, torch's store listens at all of them.

    ``address`` empty: all of this machine's. ``port`` 0: one that is free.

    Raises:
        OSError: The port is taken, or not permitted, or the address is not this machine's.
    """
    listening = socket.socket()
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, port))
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def serve_on(listening: socket.socket, host: str, limit: timedelta) -> TCPStore:
    """Serve a store on a socket that listens, for as long as what is returned is kept.

    ``listening``: see `listen`. ``host``: as clients know it. ``limit``: how long to wait for a
    key.
    """
    port = listening.getsockname()[1]
    return TCPStore(host, port, None, True, limit, False, False, listening.detach())


def open_store(rendezvous: Rendezvous, limit: timedelta) -> Store:
    """Connect to the store of a world.

    Raises:
        StoreUnreachable: It is not there.
    """
    try:
        store = TCPStore(rendezvous.host, rendezvous.port, None, False, limit, False)
    except (RuntimeError, ValueError) as error:
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise StoreUnreachable(f"{rendezvous.host}:{rendezvous.port}: {reason}") from None
    return PrefixStore(rendezvous.prefix, store)


def open_session(store: Store, secret: str) -> "StoreQueue":
    """Begin a session: draw its number, and prove in the store that this process has the secret."""
    session = secrets.token_hex(16)
    store.set("session", f"{session} {sign(secret, 'session', session)}")
    return StoreQueue(store, secret, session, {})


def join_session(
    store: Store, rank: int, candidates: Callable[[], Iterable[str]], limit_s: float
) -> "StoreQueue":
    """Wait for the session, find the secret that it has, and draw this process's number.

    ``candidates`` returns the secrets that are known here; it is asked again until one is right.
    ``limit_s``: how long one may take, from when the session is there.

    Raises:
        StoreUnreachable: The session does not come.
        EnvironmentUnfit: No secret is the one of the session.
    """
    end: float | None = None
    while True:
        try:
            told = store.get("session").decode(errors="replace")
        except RuntimeError:
            raise StoreUnreachable("the store, where the first rank has written nothing") from None
        session, _, proof = told.partition(" ")
        for secret in candidates():
            if is_signed(proof, secret, "session", session):
                own = secrets.token_hex(16)
                store.set(f"number/{rank}", own)
                return StoreQueue(store, secret, session, {rank: own})
        end = end or time.monotonic() + limit_s
        if time.monotonic() > end:
            raise EnvironmentUnfit(f"it does not have the secret that rank 0 has. {ADVICE}")
        time.sleep(POLL_S)


class StoreQueue:
    """One process's way to write to and to read from the others.

    ``session`` is the number that the session has drawn. ``numbers``: rank → the number that it has
    drawn; others are looked up in the store.
    """

    def __init__(self, store: Store, secret: str, session: str, numbers: Mapping[int, str]) -> None:
        self.store = store
        self.secret = secret
        self.session = session
        self.numbers = dict(numbers)
        self.num_sent: dict[int, int] = {}
        self.num_written = 0
        self.next_told: dict[int, int] = {}
        self.num_lost = 0

    def over(self, store: Store) -> "StoreQueue":
        """Return a queue of the same session over a connection of its own."""
        return StoreQueue(store, self.secret, self.session, self.numbers)

    def launch_key(self, launch: int) -> str:
        """Return what the ranks of a launch sign with: the same for all, and for no other one."""
        return sign(self.secret, "launch", self.session, str(launch))

    def knows(self, rank: int) -> bool:
        """Tell whether a process can be written to without waiting for it."""
        return rank in self.numbers or bool(self.store.check([f"number/{rank}"]))

    def send(self, rank: int, message: dict[str, Any]) -> None:
        """Write to one process, once it is there; only the session does."""
        number = self.num_sent.get(rank, 0)
        self.num_sent[rank] = number + 1
        self._write(f"to/{rank}/{number}", rank, message)

    def tell(self, rank: int, message: dict[str, Any]) -> None:
        """Write to the session."""
        name = f"of/{rank}/{self.num_written}"
        self.num_written += 1
        self._write(name, rank, message)
        number = self.store.add("told", 1) - 1
        self.store.set(f"from/{number}", name)

    def received(self, rank: int, number: int) -> dict[str, Any]:
        """Wait for a message to a process, by its number, and take it.

        Raises:
            Forged: The session has not written it.
        """
        name = f"to/{rank}/{number}"
        self.store.wait([name], NO_LIMIT)
        return self._take(name, rank)

    def sent(self, number: int) -> dict[str, Any] | None:
        """Wait for a message to the session, by its number, and take it; None: it is lost.

        Raises:
            Forged: No process of this session has written it, or it has come before.
        """
        key = f"from/{number}"
        while True:
            try:
                self.store.wait([key], LOST_AFTER)
                break
            except RuntimeError as error:
                if "timeout" not in str(error):
                    raise
                if self.store.add("told", 0) > number and not self.store.check([key]):
                    self.num_lost += 1
                    if self.num_lost > MOST_LOST:
                        raise Forged(f"{key} was announced and not written") from None
                    return None
        self.num_lost = 0
        name = self.store.get(key).decode(errors="replace")
        self.store.delete_key(key)
        match = _TOLD.fullmatch(name)
        if match is None:
            raise Forged(f"{key} names no message")
        rank, place = int(match[1]), int(match[2])
        if place < self.next_told.get(rank, 0) or not self.knows(rank):
            raise Forged(f"{key} names a message that has come before, or of no rank")
        self.next_told[rank] = place + 1
        return self._take(name, rank)

    def _signed(self, name: str, rank: int, header: str) -> tuple[str, ...]:
        """Return what the signature of a message is made over."""
        if rank not in self.numbers:
            self.numbers[rank] = self.store.get(f"number/{rank}").decode(errors="replace")
        return (self.session, self.numbers[rank], name, header)

    def _write(self, name: str, rank: int, message: dict[str, Any]) -> None:
        data = zlib.compress(json.dumps(message).encode(), 1)
        parts = [data[i : i + PART_BYTES] for i in range(0, len(data), PART_BYTES)]
        for index, part in enumerate(parts):
            self.store.set(f"{name}/{index}", part)  # type: ignore[arg-type]  # it takes bytes
        header = f"{len(parts)} {hashlib.sha256(data).hexdigest()}"
        signature = sign(self.secret, *self._signed(name, rank, header))
        self.store.set(name, f"{header} {signature}")

    def _take(self, name: str, rank: int) -> dict[str, Any]:
        known = self.store.check([name])
        told = self.store.get(name).decode(errors="replace") if known else ""
        header, _, signature = told.rpartition(" ")
        if not is_signed(signature, self.secret, *self._signed(name, rank, header)):
            raise Forged(f"{name} is not signed with the secret of this run")
        count, digest = header.split()
        keys = [f"{name}/{index}" for index in range(int(count))]
        data = b"".join(self.store.get(key) for key in keys) if self.store.check(keys) else b""
        if hashlib.sha256(data).hexdigest() != digest:
            raise Forged(f"{name} was changed")
        for key in (name, *keys):
            self.store.delete_key(key)
        unpacked = zlib.decompressobj().decompress(data, MAX_MESSAGE_BYTES)
        return dict(json.loads(unpacked))


def rendezvous_store(request: dict[str, Any], paths: LaunchPaths, job: Job) -> Path | Store:
    """Return the store of a launch: a file on this machine, or a part of the world's store.

    ``store`` of the request has the world's ``rendezvous`` and the number of the ``launch``.

    Raises:
        StoreUnreachable: The world's store is gone.
    """
    if "store" not in request:
        return paths.store
    told = request["store"]
    rendezvous = Rendezvous.model_validate(told["rendezvous"])
    store = open_store(rendezvous, timedelta(seconds=job.limit_s))
    return PrefixStore(f"launch/{told['launch']}", store)


class SealedStore:
    """What the ranks of a launch tell one another: values that only they can have written.

    ``key``: see `StoreQueue.launch_key`. Empty: no one else can write to the store.
    """

    def __init__(self, store: Store, key: str) -> None:
        self.store = store
        self.key = key

    def set(self, name: str, text: str) -> None:
        """Write a value."""
        self.store.set(name, seal(self.key, name, text))

    def get(self, name: str) -> str:
        """Wait for a value and return it.

        Raises:
            Forged: No rank of this launch has written it.
        """
        return unseal(self.key, name, self.store.get(name))


def socket_variables(rendezvous: Rendezvous) -> dict[str, str]:
    """Return the variables that name the interface, where the user has set none.

    On one machine: the loopback interface. Between machines gloo would take the interface that the
    host's own name stands for, which on many systems is the loopback one; so it is told the one
    that leads to where the world meets. NCCL finds its interfaces by itself.
    """
    if rendezvous.one_node:
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        wanted = dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), loopback)
    else:
        interface = interface_towards(rendezvous.host, rendezvous.port)
        wanted = {} if interface is None else {"GLOO_SOCKET_IFNAME": interface}
    return {name: value for name, value in wanted.items() if name not in os.environ}


def interface_towards(host: str, port: int) -> str | None:
    """Return the interface over which a host is reached, or None: it is not known."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[
            0
        ]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # sends nothing
            own = probe.getsockname()[0].partition("%")[0]
    except OSError:
        return None
    if ipaddress.ip_address(own).is_loopback and not _is_loopback(host):
        return None  # the machine's own name stands for the loopback interface
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == own for each in addresses):
            return name
    return None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


Take = Callable[[StoreQueue, int], dict[str, Any] | None]


LOST: dict[str, Any] = {"lost": True}
"""The last message of a listener: the store is gone. Or it is ``forged``: what is wrong."""


def fork_listener(connect: Callable[[], StoreQueue], take: Take, channel: Channel) -> None:
    """Fork a listener. When the store ends it says so (`LOST`) and ends, too.

    No other process may share the queue that ``connect`` opens; the caller closes its own copy of
    ``channel``. ``take`` waits for the message of a number and takes it.
    """

    def listen() -> None:
        try:
            with suppress(RuntimeError, OSError, StoreUnreachable):  # store or hearer are gone
                queue = connect()
                for number in count():
                    message = take(queue, number)
                    if message is not None:
                        channel.send(message)
            channel.send(LOST)
        except Forged as error:
            channel.send({"forged": str(error)})

    fork_child(listen)


def fork_child(work: Callable[[], None]) -> None:
    """Do something in a forked process that ends with this one."""
    parent = os.getpid()
    if os.fork():
        return
    code = 1
    try:
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        die_with_parent(parent)
        work()
        code = 0
    finally:
        os._exit(code)
