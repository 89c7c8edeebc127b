"""The session's end of a world's store: passes messages on, and holds rank 0.

The session itself never imports torch, and the store is torch's. So it starts this process, which
also serves the store where no launcher does. Started as
``python -m scalebench.worker.world.hub FD PARENT MEETING MEMBER SCRATCH``; MEMBER is empty where
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

from scalebench.worker import jobs
from scalebench.worker.process import die_with_parent
from scalebench.worker.world import follower
from scalebench.worker.world.ear import fork_ear
from scalebench.worker.world.mailbox import NO_LIMIT, Mailbox, NoMailbox, open_store
from scalebench.worker.zygote import settle_down
from scalebench.world import Meeting, Member

LOOPBACK = "127.0.0.1"
BACKLOG = 4096


def listen(meeting: Meeting) -> socket.socket:
    """Return a socket that listens where a world is to meet.

    On the loopback interface only where all of it is on one machine.

    Raises:
        NoMailbox: The port is taken, or may not be had.
    """
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((LOOPBACK if meeting.one_node else "", meeting.port))
        listening.listen(BACKLOG)
    except OSError as error:
        raise NoMailbox(
            f"port {meeting.port}: {error.strerror}. Set MASTER_PORT to a free port"
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


def serve_store(meeting: Meeting) -> None:
    """Have a process serve the store: one with threads, which nobody may fork."""
    listening = listen(meeting)

    def work() -> None:
        limit = timedelta(seconds=60)
        descriptor = listening.detach()
        store = TCPStore(meeting.host, meeting.port, None, True, limit, False, False, descriptor)
        while store.port:
            signal.pause()

    fork_child(work)
    listening.close()


def pass_on(session: socket.socket, mailbox: Mailbox) -> None:
    """Write to ranks what the session wants written, until it hangs up."""
    with session.makefile("rb") as lines:
        for line in lines:
            request = json.loads(line)
            for rank in request["to"]:
                mailbox.send(rank, request["message"])


def main(arguments: list[str]) -> None:
    """Meet the world and pass messages on until the session hangs up."""
    descriptor, parent = (int(argument) for argument in arguments[:2])
    if parent:
        die_with_parent(parent)
    meeting = Meeting.model_validate_json(arguments[2])
    session = socket.socket(fileno=descriptor)
    jobs.preload()
    settle_down()

    def tell(message: dict[str, Any]) -> None:
        session.sendall(json.dumps(message).encode() + b"\n")

    try:
        if not meeting.served:
            serve_store(meeting)
        mailbox = Mailbox(open_store(meeting, follower.MEETING_LIMIT))
    except NoMailbox as error:
        tell({"error": f"The ranks cannot meet: {error}."})
        return
    if arguments[3]:
        member = Member.model_validate_json(arguments[3])
        fork_child(lambda: _be_follower(member, Path(arguments[4]), session))
    tell({"ready": os.getpid()})
    fork_ear(lambda: Mailbox(open_store(meeting, NO_LIMIT)), Mailbox.told, session)
    with suppress(RuntimeError, OSError):  # the store, or the session, is gone
        pass_on(session, mailbox)


def _be_follower(member: Member, scratch: Path, session: socket.socket) -> None:
    session.close()
    with suppress(NoMailbox):
        follower.serve(member, scratch)


if __name__ == "__main__":
    main(sys.argv[1:])
