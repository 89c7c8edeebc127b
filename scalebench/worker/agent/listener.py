"""A listener: a process that waits for messages in the store and passes them on over a channel.

Waiting for a message blocks the process that waits. So a process with more to do than to wait forks
a listener, and hears from it through a socket.
"""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

from scalebench.records.channel import Channel
from scalebench.records.secret import Forged
from scalebench.worker.process.setup import die_with_parent
from scalebench.worker.process.store_queue import StoreQueue, StoreUnreachable

Take = Callable[[StoreQueue, int], dict[str, Any] | None]


LOST: dict[str, Any] = {"lost": True}
"""The last message of a listener: the store is gone. Or it is ``forged``: what is wrong."""


def fork_listener(connect: Callable[[], StoreQueue], take: Take, channel: Channel) -> None:
    """Fork a listener. When the store ends it says so (`LOST`) and ends, too.

    Args:
        connect: Opens a queue, which no other process may share.
        take: Waits for the message of a number and takes it.
        channel: Where messages go; the caller closes its own copy.
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
