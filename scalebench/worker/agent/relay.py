"""The session's end of a world's store: passes messages on, and holds rank 0.

The session itself never imports torch, and the store is torch's. So it starts this process, which
also serves the store where no launcher does. Started as
``python -m scalebench.worker.agent.relay FD PARENT MEETING MEMBER SCRATCH``; MEMBER is empty where
the session is no process of the world itself. The secret of the world is in the environment.
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

from scalebench.errors import EnvironmentUnfit
from scalebench.records.secret import VARIABLE, Forged
from scalebench.spec.world import Rendezvous, WorldMember
from scalebench.worker import jobs
from scalebench.worker.agent import agent
from scalebench.worker.agent.listener import fork_listener
from scalebench.worker.process.setup import die_with_parent
from scalebench.worker.process.store_queue import (
    CONNECT_LIMIT,
    StoreQueue,
    StoreUnreachable,
    listen,
    open_session,
    open_store,
    serve_on,
)
from scalebench.worker.zygote import settle_down

LOOPBACK = "127.0.0.1"


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
    """Have a process serve the store: one with threads, which must not be forked.

    On the loopback interface only where all of the world is on one machine.

    Raises:
        StoreUnreachable: The port is taken, or not permitted.
    """
    try:
        listening = listen(LOOPBACK if rendezvous.one_node else "", rendezvous.port)
    except OSError as error:
        raise StoreUnreachable(
            f"port {rendezvous.port}: {error.strerror}. Set MASTER_PORT to a free port"
        ) from None

    def work() -> None:
        store = serve_on(listening, rendezvous.host, timedelta(seconds=60))
        while store.port:
            signal.pause()

    fork_child(work)
    listening.close()


def pass_on(session: socket.socket, queue: StoreQueue) -> None:
    """Write to ranks what the session wants written, until it hangs up.

    First to those that are there: the others are waited for.
    """
    with session.makefile("rb") as lines:
        for line in lines:
            request = json.loads(line)
            for rank in sorted(request["to"], key=lambda rank: not queue.knows(rank)):
                queue.send(rank, request["message"])


def main(arguments: list[str]) -> None:
    """Meet the world and pass messages on until the session hangs up."""
    descriptor, parent = (int(argument) for argument in arguments[:2])
    if parent:
        die_with_parent(parent)
    rendezvous = Rendezvous.model_validate_json(arguments[2])
    secret = os.environ.pop(VARIABLE)
    session = socket.socket(fileno=descriptor)
    jobs.preload()
    settle_down()

    def tell(message: dict[str, Any]) -> None:
        session.sendall(json.dumps(message).encode() + b"\n")

    try:
        if not rendezvous.served:
            serve_store(rendezvous)
        queue = open_session(open_store(rendezvous, CONNECT_LIMIT), secret)
    except StoreUnreachable as error:
        tell({"error": f"The ranks cannot connect: {error}."})
        return
    if arguments[3]:
        member = WorldMember.model_validate_json(arguments[3])
        fork_child(lambda: _be_agent(member, Path(arguments[4]), session, secret))
    tell({"ready": os.getpid()})
    fork_listener(
        lambda: queue.over(open_store(rendezvous, CONNECT_LIMIT)), StoreQueue.told, session
    )
    with suppress(RuntimeError, OSError):  # the store, or the session, is gone
        pass_on(session, queue)


def _be_agent(member: WorldMember, scratch: Path, session: socket.socket, secret: str) -> None:
    session.close()
    signal.signal(signal.SIGTERM, agent.leave)
    die_with_parent(os.getppid(), signal.SIGTERM)
    with suppress(StoreUnreachable, EnvironmentUnfit, Forged):  # the session hears of it
        agent.serve(member, scratch, lambda: [secret], agent.GIVEN_LIMIT_S)


if __name__ == "__main__":
    main(sys.argv[1:])
