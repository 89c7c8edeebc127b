"""A listener: a process that waits for messages in the store and passes them on over a channel.

Waiting for a message blocks the process that waits. So a process with more to do than to wait forks
a listener, and hears from it through a socket.

Which network interface the ranks of a world talk on.
"""

import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

import psutil

from scalebench.records.storage.channel import Channel
from scalebench.records.storage.secret import Forged
from scalebench.spec.world import Rendezvous
from scalebench.worker.process.setup import die_with_parent
from scalebench.worker.process.store_queue import StoreQueue, StoreUnreachable


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
