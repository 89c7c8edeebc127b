"""An ear: a process that waits for messages in the store and passes them on as lines.

Waiting for a message blocks the process that waits. So a process with more to do than to wait forks
an ear, and hears from it through a socket.
"""

import json
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

from scalebench.records.secret import Forged
from scalebench.worker.process.setup import die_with_parent
from scalebench.worker.process.store_queue import StoreQueue, StoreUnreachable

Take = Callable[[StoreQueue, int], dict[str, Any] | None]


LOST: dict[str, Any] = {"lost": True}
"""The last message of an ear: the store is gone. Or ``forged``, what is wrong with a message."""


def fork_listener(connect: Callable[[], StoreQueue], take: Take, line: socket.socket) -> int:
    """Fork an ear; return its pid. When the store ends it says so (`LOST`) and ends, too.

    Args:
        connect: Opens a queue, which no other process may share.
        take: Waits for the message of a number and takes it.
        line: Where messages go, one in a line; the caller closes its own copy.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        for ended in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(ended, signal.SIG_DFL)
        die_with_parent(parent)
        with suppress(RuntimeError, OSError, StoreUnreachable):  # store or listener are gone
            queue = connect()
            for number in count():
                message = take(queue, number)
                if message is not None:
                    line.sendall(json.dumps(message).encode() + b"\n")
        line.sendall(json.dumps(LOST).encode() + b"\n")
    except Forged as error:
        line.sendall(json.dumps({"forged": str(error)}).encode() + b"\n")
    finally:
        os._exit(0)
