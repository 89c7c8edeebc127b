"""One process of a world: a zygote that is told over the store what to start.

It imports torch once, waits without using a processor, and forks a fresh rank for every cell that
it takes part in. Started as ``python -m scalebench.worker.agent.agent MEMBER``.
"""

import gc

if __name__ == "__main__":
    gc.disable()  # torch makes no garbage while it is imported: a fifth of its time

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch

from scalebench import machine
from scalebench.errors import EnvironmentUnfit, ExitCode
from scalebench.machine import allowed_processors, read_processors
from scalebench.records.files import Channel, write_atomic
from scalebench.records.folder import Scratch
from scalebench.records.paths import LaunchPaths
from scalebench.records.secret import (
    VARIABLE,
    Forged,
    given_secret,
    read_secret,
    secret_files,
)
from scalebench.spec.world import Rendezvous, WorldMember
from scalebench.worker.process import jobs
from scalebench.worker.process.setup import redirect_output
from scalebench.worker.process.store_queue import (
    CONNECT_LIMIT,
    LOST,
    StoreQueue,
    StoreUnreachable,
    fork_listener,
    join_session,
    open_store,
    socket_variables,
)
from scalebench.worker.process.zygote import Zygote, freeze_objects

GIVEN_LIMIT_S = 10.0
"""How long the session may take to prove that it has the secret that a launcher passes on."""
SHARED_LIMIT_S = 90.0
"""How long a shared folder may take to show a new file: those of networks take up to a minute."""
FAREWELL_S = 2.0
"""Time for the session to say why a world ends: launchers end all of it as soon as one leaves."""
LOG_BYTES = 1 << 16
"""Of a rank's log, what the session is sent: its end."""
WATCHER = "scalebench.launch.monitor.sampler"
WATCH_LIMIT_S = 5.0


class DeviceWatch:
    """A process that watches GPUs until `stop`: the one that forks ranks has no thread, no driver.

    ``family``: processes that are of the launch, with all that descend from them.
    """

    def __init__(self, uuids: Sequence[str], family: Sequence[int]) -> None:
        own = [sys.executable, *(["-P"] if sys.flags.safe_path else [])]
        self.process = subprocess.Popen(
            [*own, "-m", WATCHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"uuids": uuids, "family": family}) + "\n")
        self.process.stdin.flush()

    def stop(self) -> str | None:
        """Return what was seen, a `NodeTrack` as JSON; None: the process does not tell."""
        try:
            return self.process.communicate("end\n", timeout=WATCH_LIMIT_S)[0] or None
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            return None


class Agent(Zygote):
    """Takes requests from the store and answers over it."""

    def __init__(self, member: WorldMember, scratch: Path, line: socket.socket, queue: StoreQueue):
        super().__init__(line)
        self.member = member
        self.scratch = scratch
        self.queue = queue
        self.device_watch: DeviceWatch | None = None

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
        if "forged" in request:
            self.tell({"forged": f"Rank {self.member.rank}: {request['forged']}"})
            raise Forged(request["forged"])
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
            "store": {
                "rendezvous": self.member.rendezvous.model_dump(),
                "launch": request["tag"][0],
                "key": self.queue.launch_key(request["tag"][0]),
            },
        }
        watch = request.pop("watch", None)
        if watch is not None:
            with suppress(OSError):  # not watched is better than not trained
                self.device_watch = DeviceWatch(**watch)
        super().start({**request, **own})

    def exit_message(self, tag: list[int], code: int) -> dict[str, Any]:
        """Return what is told of a rank that has ended: what it left, and the end of its log."""
        ended = super().exit_message(tag, code)
        paths = self._paths(tag)
        left = {
            "record": paths.record(tag[1]),
            "position": paths.position(tag[1]),
            "answer": paths.root / "answer.json",
        }
        texts = {name: path.read_text() for name, path in left.items() if path.is_file()}
        if self.device_watch is not None:
            texts["watched"] = self.device_watch.stop() or ""
            self.device_watch = None
        log = self._log(paths)
        said = log.read_bytes()[-LOG_BYTES:] if log.is_file() else b""
        shutil.rmtree(paths.root, ignore_errors=True)
        return ended | texts | {"log": said.decode(errors="replace")}

    def _paths(self, tag: list[int]) -> LaunchPaths:
        return LaunchPaths(self.scratch / f"launch{tag[0]}.{tag[1]}")

    def _log(self, paths: LaunchPaths) -> Path:
        return paths.root / "log"


def serve(
    member: WorldMember, scratch: Path, candidates: Callable[[], Iterable[str]], limit_s: float
) -> None:
    """Follow the session until it says that it has ended, or its store is gone.

    Raises:
        StoreUnreachable: The processes of the world do not connect.
        EnvironmentUnfit: This one does not know the session's secret.
        Forged: Somebody else has written a message.
    """
    os.environ.update(socket_variables(member.rendezvous))
    store = open_store(member.rendezvous, CONNECT_LIMIT)
    queue = join_session(store, member.rank, candidates, limit_s)
    heard, line = socket.socketpair()

    def connect() -> StoreQueue:
        heard.close()
        return queue.over(open_store(member.rendezvous, CONNECT_LIMIT))

    channel = Channel(line)
    fork_listener(connect, lambda box, number: box.received(member.rank, number), channel)
    channel.close()
    with suppress(RuntimeError, BrokenPipeError):  # the store is gone: so is the session
        Agent(member, scratch, heard, queue).serve()


def known_secrets(rendezvous: Rendezvous) -> tuple[Callable[[], Iterable[str]], float]:
    """Return what returns the secrets that a process of a world knows, and how long to ask, s.

    The one of the environment is taken out of it: no rank needs it.
    """
    given = given_secret(os.environ)
    os.environ.pop(VARIABLE, None)
    if given is not None:
        return lambda: [given], GIVEN_LIMIT_S
    files = secret_files(rendezvous)

    def written() -> list[str]:
        return [secret for secret in map(read_secret, files) if secret is not None]

    return written, SHARED_LIMIT_S


def leave(number: int, _frame: FrameType | None) -> NoReturn:
    """End this process because of a signal, the ranks first."""
    raise SystemExit(128 + number)


def main(arguments: list[str]) -> None:
    """Serve as the process of a world that the first argument describes."""
    member = WorldMember.model_validate_json(arguments[0])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the session: it decides
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, leave)
    errors = os.dup(2)
    os.set_inheritable(errors, False)
    scratch = Scratch()
    redirect_output(scratch.folder / "agent.log")

    def give_up(text: str) -> NoReturn:
        os.write(errors, f"scalebench: rank {member.rank} {text}\n".encode(errors="replace"))
        raise SystemExit(ExitCode.ENVIRONMENT)

    try:
        known = known_secrets(member.rendezvous)
        jobs.preload()
        freeze_objects()
        serve(member, scratch.folder, *known)
    except StoreUnreachable as error:
        give_up(f"cannot reach the other ranks at {error}.")
    except Forged as error:
        time.sleep(FAREWELL_S)
        give_up(f"ends: {error}. It did nothing of what the message says.")
    except EnvironmentUnfit as error:
        give_up(f"cannot take part: {error}")
    finally:
        scratch.close()


if __name__ == "__main__":
    main(sys.argv[1:])
