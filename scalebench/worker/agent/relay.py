"""The session's end of a world's store: passes messages on, and holds rank 0.

The session itself never imports torch, and the store is torch's. So it starts this process, which
also serves the store where no launcher does. Started as
``python -m scalebench.worker.agent.relay FD PARENT MEETING MEMBER SCRATCH``; MEMBER is empty where
the session is no process of the world itself.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import TCPStore

from scalebench.spec.world import Rendezvous, WorldMember
from scalebench.worker import jobs
from scalebench.worker.agent import agent
from scalebench.worker.agent.listener import fork_listener
from scalebench.worker.process.setup import die_with_parent
from scalebench.worker.process.store_queue import NO_LIMIT, StoreQueue, StoreUnreachable, open_store
from scalebench.worker.zygote import settle_down

LOOPBACK = "127.0.0.1"
BACKLOG = 4096


def listen(rendezvous: Rendezvous) -> socket.socket:
    """Return a socket that listens where a world is to meet.

    On the loopback interface only where all of it is on one machine.

    Raises:
        StoreUnreachable: The port is taken, or not permitted.
    """
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((LOOPBACK if rendezvous.one_node else "", rendezvous.port))
        listening.listen(BACKLOG)
    except OSError as error:
        raise StoreUnreachable(
            f"port {rendezvous.port}: {error.strerror}. Set MASTER_PORT to a free port"
        ) from None
    return listening


def fork_child(work: Callable[[], None]) -> None:
    """Do something in a forked process that ends with this one."""
    parent = os.getpid()
    if os.fork():
        return
    code = 1
    try:
        die_with_parent(parent)
        work()
        code = 0
    finally:
        os._exit(code)


def serve_store(rendezvous: Rendezvous) -> None:
    """Have a process serve the store: one with threads, which must not be forked."""
    listening = listen(rendezvous)

    def work() -> None:
        limit = timedelta(seconds=60)
        descriptor = listening.detach()
        store = TCPStore(
            rendezvous.host, rendezvous.port, None, True, limit, False, False, descriptor
        )
        while store.port:
            signal.pause()

    fork_child(work)
    listening.close()


def pass_on(session: socket.socket, queue: StoreQueue) -> None:
    """Write to ranks what the session wants written, until it hangs up."""
    with session.makefile("rb") as lines:
        for line in lines:
            request = json.loads(line)
            for rank in request["to"]:
                queue.send(rank, request["message"])


def main(arguments: list[str]) -> None:
    """Meet the world and pass messages on until the session hangs up."""
    descriptor, parent = (int(argument) for argument in arguments[:2])
    if parent:
        die_with_parent(parent)
    rendezvous = Rendezvous.model_validate_json(arguments[2])
    session = socket.socket(fileno=descriptor)
    jobs.preload()
    settle_down()

    def tell(message: dict[str, Any]) -> None:
        session.sendall(json.dumps(message).encode() + b"\n")

    try:
        if not rendezvous.served:
            serve_store(rendezvous)
        queue = StoreQueue(open_store(rendezvous, agent.CONNECT_LIMIT))
    except StoreUnreachable as error:
        tell({"error": f"The ranks cannot connect: {error}."})
        return
    if arguments[3]:
        member = WorldMember.model_validate_json(arguments[3])
        fork_child(lambda: _be_agent(member, Path(arguments[4]), session))
    tell({"ready": os.getpid()})
    fork_listener(lambda: StoreQueue(open_store(rendezvous, NO_LIMIT)), StoreQueue.told, session)
    with suppress(RuntimeError, OSError):  # the store, or the session, is gone
        pass_on(session, queue)


def _be_agent(member: WorldMember, scratch: Path, session: socket.socket) -> None:
    session.close()
    signal.signal(signal.SIGTERM, agent.leave)
    die_with_parent(os.getppid(), signal.SIGTERM)
    with suppress(StoreUnreachable):
        agent.serve(member, scratch)


if __name__ == "__main__":
    main(sys.argv[1:])
