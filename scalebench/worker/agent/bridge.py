"""The session's end of a world's store: passes messages on, and holds rank 0.

The session itself never imports torch, and the store is torch's. So it starts this process, which
also serves the store where no launcher does. Started as
``python -m scalebench.worker.agent.bridge FD PARENT MEMBER SCRATCH``. The secret of the world is in
the environment.
"""

import gc

if __name__ == "__main__":
    gc.disable()  # torch makes no garbage while it is imported: a fifth of its time

import os
import signal
import socket
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from scalebench.errors import EnvironmentUnfit
from scalebench.records.files import Channel
from scalebench.records.secret import VARIABLE, Forged
from scalebench.spec.world import Rendezvous, WorldMember
from scalebench.worker.agent import agent
from scalebench.worker.process import jobs
from scalebench.worker.process.setup import die_with_parent
from scalebench.worker.process.store_queue import (
    CONNECT_LIMIT,
    StoreQueue,
    StoreUnreachable,
    fork_child,
    fork_listener,
    listen,
    open_session,
    open_store,
    serve_on,
)
from scalebench.worker.process.zygote import freeze_objects

LOOPBACK = "127.0.0.1"


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


def pass_on(session: Channel, queue: StoreQueue) -> None:
    """Write to ranks what the session wants written, until it hangs up.

    First to those that are there: the others are waited for.
    """
    while (requests := session.receive()) is not None:
        for request in requests:
            for rank in sorted(request["to"], key=lambda rank: not queue.knows(rank)):
                queue.send(rank, request["message"])


def main(arguments: list[str]) -> None:
    """Meet the world and pass messages on until the session hangs up."""
    descriptor, parent = (int(argument) for argument in arguments[:2])
    if parent:
        die_with_parent(parent)
    member, scratch = WorldMember.model_validate_json(arguments[2]), Path(arguments[3])
    rendezvous = member.rendezvous
    secret = os.environ.pop(VARIABLE)
    session = Channel(socket.socket(fileno=descriptor))
    jobs.preload()
    freeze_objects()

    try:
        if not rendezvous.served:
            serve_store(rendezvous)
        queue = open_session(open_store(rendezvous, CONNECT_LIMIT), secret)
    except StoreUnreachable as error:
        session.send({"error": f"The ranks cannot connect: {error}."})
        return
    fork_child(lambda: _be_agent(member, scratch, session, secret))
    session.send({"ready": os.getpid()})
    fork_listener(
        lambda: queue.over(open_store(rendezvous, CONNECT_LIMIT)), StoreQueue.sent, session
    )
    with suppress(RuntimeError, OSError):  # the store, or the session, is gone
        pass_on(session, queue)


def _be_agent(member: WorldMember, scratch: Path, session: Channel, secret: str) -> None:
    session.close()
    signal.signal(signal.SIGTERM, agent.leave)
    die_with_parent(os.getppid(), signal.SIGTERM)
    with suppress(StoreUnreachable, EnvironmentUnfit, Forged):  # the session hears of it
        agent.serve(member, scratch, lambda: [secret], agent.GIVEN_LIMIT_S)


if __name__ == "__main__":
    main(sys.argv[1:])
