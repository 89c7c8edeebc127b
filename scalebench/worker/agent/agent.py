"""One process of a world: a zygote that is told over the store what to start.

It imports torch once, waits without using a processor, and forks a fresh rank for every cell that
it takes part in. Started as ``python -m scalebench.worker.agent.agent MEMBER``, or, in a step of
Slurm's, with ``--step MEETING FIRST`` for arguments.
"""

import os
import shutil
import signal
import socket
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch

from scalebench import machine
from scalebench.processors import allowed_processors, read_processors
from scalebench.records.files import write_atomic
from scalebench.records.paths import LaunchPaths
from scalebench.records.scratch import Scratch
from scalebench.spec.world import Rendezvous, WorldMember
from scalebench.worker import jobs
from scalebench.worker.agent.interface import socket_variables
from scalebench.worker.agent.listener import LOST, fork_listener
from scalebench.worker.process.setup import redirect_output
from scalebench.worker.process.store_queue import NO_LIMIT, StoreQueue, StoreUnreachable, open_store
from scalebench.worker.zygote import Zygote, settle_down

CONNECT_LIMIT = timedelta(seconds=300)
LOG_BYTES = 1 << 16
"""Of a rank's log, what the session is sent: its end."""


class Agent(Zygote):
    """Takes requests from the store and answers over it."""

    def __init__(self, member: WorldMember, scratch: Path, line: socket.socket, queue: StoreQueue):
        super().__init__(line)
        self.member = member
        self.scratch = scratch
        self.queue = queue

    def greeting(self) -> dict[str, Any]:
        """Return who this process is and what it may use."""
        processors = read_processors(allowed_processors())
        return {
            "hello": {
                "host": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
                "pid": os.getpid(),
                "affinity": [processor.number for processor in processors],
                "cores": [processor.core for processor in processors],
                "cgroup_cpus": machine.cgroup_cpu_quota(),
                "torch": torch.__version__,
            }
        }

    def tell(self, message: dict[str, Any]) -> None:
        """Send one message to the session."""
        rank = self.member.rank
        self.queue.tell(rank, {**message, "from": rank, "now_ns": time.monotonic_ns()})

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
        """Fork a process for one job, in a separate folder."""
        paths = self._paths(request["tag"])
        paths.root.mkdir()
        if "description" in request:
            write_atomic(paths.job_json, request.pop("description"))
        own = {
            "folder": os.fspath(paths.root),
            "log": os.fspath(self._log(paths)),
            "answer": os.fspath(paths.root / "answer.json"),
            "store": {**self.member.rendezvous.model_dump(), "launch": request["tag"][0]},
        }
        super().start({**request, **own})

    def exit_message(self, tag: list[int], code: int) -> dict[str, Any]:
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
        return super().exit_message(tag, code) | texts | {"log": said.decode(errors="replace")}

    def _paths(self, tag: list[int]) -> LaunchPaths:
        return LaunchPaths(self.scratch / f"launch{tag[0]}.{tag[1]}")

    def _log(self, paths: LaunchPaths) -> Path:
        return paths.root / "log"


def serve(member: WorldMember, scratch: Path) -> None:
    """Follow the session until it says that it has ended, or its store is gone.

    Raises:
        StoreUnreachable: The processes of the world do not meet.
    """
    os.environ.update(socket_variables(member.rendezvous))
    queue = StoreQueue(open_store(member.rendezvous, CONNECT_LIMIT))
    heard, line = socket.socketpair()

    def connect() -> StoreQueue:
        heard.close()
        return StoreQueue(open_store(member.rendezvous, NO_LIMIT))

    fork_listener(connect, lambda box, number: box.received(member.rank, number), line)
    line.close()
    with suppress(RuntimeError, BrokenPipeError):  # the store is gone: so is the session
        Agent(member, scratch, heard, queue).serve()


def member_of_step(rendezvous: Rendezvous, first: int) -> WorldMember:
    """Return this process's place in a step of Slurm's that a session has started.

    Between machines the session's is the one on which srun was called.

    Args:
        rendezvous: Where the processes of all steps meet.
        first: Number of the step's first process; no two steps have one in common.
    """
    there = os.environ["SLURM_LAUNCH_NODE_IPADDR"]
    return WorldMember(
        launcher="srun",
        rank=first + int(os.environ["SLURM_PROCID"]),
        world_size=first + int(os.environ["SLURM_STEP_NUM_TASKS"]),
        rendezvous=rendezvous
        if rendezvous.one_node
        else rendezvous.model_copy(update={"host": there}),
    )


def leave(number: int, _frame: FrameType | None) -> NoReturn:
    """End this process because of a signal, the ranks first."""
    raise SystemExit(128 + number)


def main(arguments: list[str]) -> None:
    """Serve as the process of a world that the first argument describes, or of a step."""
    if arguments[0] == "--step":
        member = member_of_step(Rendezvous.model_validate_json(arguments[1]), int(arguments[2]))
    else:
        member = WorldMember.model_validate_json(arguments[0])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the session: it decides
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, leave)
    errors = os.dup(2)
    os.set_inheritable(errors, False)
    scratch = Scratch()
    redirect_output(scratch.folder / "follower.log")
    try:
        jobs.preload()
        settle_down()
        serve(member, scratch.folder)
    except StoreUnreachable as error:
        text = f"scalebench: rank {member.rank} cannot reach the other ranks at {error}.\n"
        os.write(errors, text.encode(errors="replace"))
        raise SystemExit(5) from None
    finally:
        scratch.close()


if __name__ == "__main__":
    main(sys.argv[1:])
