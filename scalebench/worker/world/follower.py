"""One process of a world: a zygote that is told over the store what to start.

It imports torch once, waits without using a processor, and forks a fresh rank for every cell that
it takes part in. Started as ``python -m scalebench.worker.world.follower MEMBER SCRATCH``, or, in a
step of Slurm's, step of Slurm's, with ``--step MEETING FIRST`` for arguments.
"""

import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch

from scalebench import machine
from scalebench.paths import LaunchPaths
from scalebench.store import write_atomic
from scalebench.worker import jobs
from scalebench.worker.process import redirect_output
from scalebench.worker.world.ear import LOST, fork_ear
from scalebench.worker.world.interface import socket_variables
from scalebench.worker.world.mailbox import NO_LIMIT, Mailbox, NoMailbox, open_store
from scalebench.worker.zygote import Zygote, settle_down
from scalebench.world import Meeting, Member

MEETING_LIMIT = timedelta(seconds=300)
LOG_BYTES = 1 << 16
"""Of a rank's log, what the session is sent: its end."""


class Follower(Zygote):
    """Takes requests from the store and answers over it."""

    def __init__(self, member: Member, scratch: Path, line: socket.socket, mailbox: Mailbox):
        super().__init__(line)
        self.member = member
        self.scratch = scratch
        self.mailbox = mailbox

    def greeting(self) -> dict[str, Any]:
        """Return who this process is and what it may use."""
        return {
            "hello": {
                "host": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
                "pid": os.getpid(),
                "affinity": allowed_processors(),
                "cgroup_cpus": machine.cgroup_cpu_quota(),
                "torch": torch.__version__,
            }
        }

    def tell(self, message: dict[str, Any]) -> None:
        """Send one message to the session."""
        rank = self.member.rank
        self.mailbox.tell(rank, {**message, "from": rank, "now_ns": time.monotonic_ns()})

    def act(self, request: dict[str, Any]) -> bool:
        """Do what one request asks for; return False when it was the last one."""
        if "ping" in request:
            self.tell({"pong": request["ping"]})
            return True
        if "end" in request:
            self.tell({"bye": True})
            return False
        if request == LOST:
            return False
        return super().act(request)

    def start(self, request: dict[str, Any]) -> None:
        """Fork a process for one job, in a folder of its own."""
        paths = self._paths(request["tag"])
        paths.root.mkdir()
        if "description" in request:
            write_atomic(paths.job_json, request.pop("description"))
        own = {
            "folder": os.fspath(paths.root),
            "log": os.fspath(self._log(paths)),
            "answer": os.fspath(paths.root / "answer.json"),
            "store": {**self.member.meeting.model_dump(), "launch": request["tag"][0]},
        }
        super().start({**request, **own})

    def obituary(self, tag: list[int], code: int) -> dict[str, Any]:
        """Return what is told of a rank that has ended: what it left, and the end of its log."""
        paths = self._paths(tag)
        left = {
            "record": paths.record(tag[1]),
            "position": paths.position(tag[1]),
            "answer": paths.root / "answer.json",
        }
        texts = {name: path.read_text() for name, path in left.items() if path.is_file()}
        log = self._log(paths)
        said = log.read_bytes()[-LOG_BYTES:] if log.is_file() else b""
        shutil.rmtree(paths.root, ignore_errors=True)
        return super().obituary(tag, code) | texts | {"log": said.decode(errors="replace")}

    def _paths(self, tag: list[int]) -> LaunchPaths:
        return LaunchPaths(self.scratch / f"launch{tag[0]}.{tag[1]}")

    def _log(self, paths: LaunchPaths) -> Path:
        return paths.root / "log"


def allowed_processors() -> list[int]:
    """Return the processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def serve(member: Member, scratch: Path) -> None:
    """Follow the session until it says that it has ended, or its store is gone.

    Raises:
        NoMailbox: The processes of the world do not meet.
    """
    os.environ.update(socket_variables(member.meeting))
    mailbox = Mailbox(open_store(member.meeting, MEETING_LIMIT))
    heard, line = socket.socketpair()

    def connect() -> Mailbox:
        heard.close()
        return Mailbox(open_store(member.meeting, NO_LIMIT))

    fork_ear(connect, lambda box, number: box.received(member.rank, number), line)
    line.close()
    with suppress(RuntimeError, BrokenPipeError):  # the store is gone: so is the session
        Follower(member, scratch, heard, mailbox).serve()


def member_of_step(meeting: Meeting, first: int) -> Member:
    """Return this process's place in a step of Slurm's that a session has started.

    Between machines the session's is the one on which srun was called.

    Args:
        meeting: Where the processes of all steps meet.
        first: Number of the step's first process; no two steps have one in common.
    """
    there = os.environ["SLURM_LAUNCH_NODE_IPADDR"]
    return Member(
        launcher="srun",
        rank=first + int(os.environ["SLURM_PROCID"]),
        world_size=first + int(os.environ["SLURM_STEP_NUM_TASKS"]),
        meeting=meeting if meeting.one_node else meeting.model_copy(update={"host": there}),
    )


def _leave(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


def main(arguments: list[str]) -> None:
    """Serve as the process of a world that the first argument describes, or of a step."""
    if arguments[0] == "--step":
        member = member_of_step(Meeting.model_validate_json(arguments[1]), int(arguments[2]))
        scratch = Path(tempfile.mkdtemp(prefix="scalebench-"))
    else:
        member, scratch = Member.model_validate_json(arguments[0]), Path(arguments[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the session: it decides
    signal.signal(signal.SIGTERM, _leave)
    errors = os.dup(2)
    os.set_inheritable(errors, False)
    redirect_output(scratch / "follower.log")
    try:
        jobs.preload()
        settle_down()
        serve(member, scratch)
    except NoMailbox as error:
        text = f"scalebench: rank {member.rank} does not reach the others at {error}.\n"
        os.write(errors, text.encode(errors="replace"))
        raise SystemExit(5) from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
