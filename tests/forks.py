"""Programs in forks of one process that has imported torch, pandas and the rest already.

`python -m scalebench run` imports for two seconds, the process that it forks ranks from for three
more, and each rank of a user's script for two. What tests ask of a run is not its start: that has
tests of its own, with fresh interpreters. Here a process is forked for each call, with folder,
environment and streams of its own; the process that it starts to fork ranks from is a fork as
well, in a session of its own, and so is the interpreter of a script.
"""

import atexit
import gc
import importlib
import io
import json
import multiprocessing.util
import os
import pkgutil
import random
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy
import torch

ROOT = Path(__file__).parents[1]
FIRST = {"KINETO_LOG_LEVEL": "5", "DS_ACCELERATOR": "cpu"}
"""What libraries read when they are loaded, as the process that forks ranks is given it."""
FRAMEWORKS = (
    *("deepspeed", "torch._inductor.compile_fx", "accelerate", "fairscale.optim.oss"),
    "lightning",
)
"""What each rank would import for seconds in an environment that has them."""
FRESH = "TESTS_START_SCRIPTS_AFRESH"
"""Variable with which users' scripts have interpreters of their own, and no forks."""


class Started:
    """A program that has been started: as much of `subprocess.Popen` as tests ask for."""

    def __init__(self, arguments: Sequence[str], told: socket.socket, files: Sequence[IO]) -> None:
        self.args, self.told, self.files = list(arguments), told, files
        self.returncode: int | None = None
        self.texts: list[str] = []
        self.pid = self._answer(None)

    def _answer(self, limit_s: float | None) -> int:
        self.told.settimeout(limit_s)
        answer = self.told.recv(100)
        assert answer, "the process that forks has ended"
        return int(answer)

    def poll(self) -> int | None:
        with suppress(BlockingIOError):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            try:
                self.returncode = self._answer(timeout)
            except TimeoutError:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0) from None
            self.told.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        for file in self.files:
            file.seek(0)
            self.texts.append(file.read().decode())
            file.close()
        self.files = ()
        return self.texts[0], self.texts[1]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forks:
    """The tests' end: for an interpreter, and the folder that scalebench is imported from."""

    def __init__(self, python: Path, package: Path) -> None:
        self.own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = os.pathsep.join(map(str, dict.fromkeys((package, ROOT))))
        with theirs:
            self.process = subprocess.Popen(
                [python, "-m", "tests.forks", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd="/",
                env={**os.environ, **FIRST, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
            )
        atexit.register(self.close)

    def close(self) -> None:
        self.own.close()
        self.process.wait()

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str] = os.environ,
    ) -> Started:
        """Start ``python -m MODULE ARGUMENTS``."""
        request = {
            "words": [module, *arguments],
            "cwd": os.fspath(cwd),
            "environment": dict(environment),
        }
        files = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115
        told, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            given = [theirs.fileno(), *(file.fileno() for file in files)]
            socket.send_fds(self.own, [json.dumps(request).encode()], given)
        return Started(arguments, told, files)

    def run(
        self,
        module: str,
        arguments: Sequence[str],
        cwd: Path,
        limit_s: float,
        environment: Mapping[str, str] = os.environ,
    ) -> "subprocess.CompletedProcess[str]":
        started = self.start(module, arguments, cwd, environment)
        try:
            written = started.communicate(limit_s)
        finally:
            started.kill()
        return subprocess.CompletedProcess(started.args, started.wait(), *written)


@cache
def forks(python: Path = Path(sys.executable), package: Path = ROOT) -> Forks:
    return Forks(python, package)


def import_all() -> None:
    """Import scalebench, and what its processes import while they work."""
    import scalebench

    for found in pkgutil.walk_packages(scalebench.__path__, "scalebench."):
        if not found.name.endswith(("__main__", "pytest_plugin", "cli.gallery")):
            with suppress(ImportError):  # a framework that is not installed
                importlib.import_module(found.name)
    with suppress(ImportError):
        for name in FRAMEWORKS:
            importlib.import_module(name)
    from scalebench.worker.process import jobs

    jobs.preload()


def serve(connection: socket.socket) -> dict[str, Any]:
    """Fork for each request; a fork returns with its request, and its parent waits for its end."""
    signal.signal(signal.SIGCHLD, reap)
    while True:
        request, descriptors, *_ = socket.recv_fds(connection, 1_000_000, 3)
        if not request:
            sys.exit()
        if os.fork() == 0:
            connection.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            with socket.socket(fileno=descriptors[0]) as told:
                pid = os.fork()
                if pid:
                    told.send(str(pid).encode())
                    status = os.waitpid(pid, 0)[1]
                    told.send(str(os.waitstatus_to_exitcode(status)).encode())
                    os._exit(0)
            for standard, given in enumerate(descriptors[1:], 1):
                os.dup2(given, standard)
                os.close(given)
            return dict(json.loads(request))
        for given in descriptors:
            os.close(given)


def reap(*_: object) -> None:
    """Collect what has ended: of who waits for a program, nothing else is asked."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def become(request: Mapping[str, Any]) -> None:
    """Run a program as a fresh interpreter runs it with ``-m``."""
    os.chdir(request["cwd"])
    module, *arguments = request["words"]
    sys.path[0] = os.getcwd()
    sys.argv[1:] = arguments
    begin(request["environment"])
    fork_zygotes()
    fork_runs()
    if FRESH not in os.environ:
        fork_scripts()
    if "." in module:
        sys.modules.pop(module, None)  # else runpy warns that it is there
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def begin(environment: Mapping[str, str]) -> None:
    """Have variables, streams and signals as an interpreter has them that was just started."""
    os.environ.clear()
    os.environ.update(environment)
    places = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [place for place in places if place and place not in sys.path]
    time.tzset()
    tempfile.tempdir = None  # TMPDIR is read again
    gc.enable()
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(open(1, "wb", closefd=False))  # noqa: SIM115
    sys.stderr = sys.__stderr__ = io.TextIOWrapper(open(2, "wb", closefd=False))  # noqa: SIM115
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    random.seed()
    numpy.random.seed()
    torch.seed()  # forks would draw the same numbers


def leave(program: Callable[[], int | None]) -> NoReturn:
    """Run a program and end as its interpreter would, but take nothing apart: it is a second."""
    code = 1
    try:
        code = program() or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def pipes_to_itself() -> Iterator[int]:
    """Yield the numbers of pipes of which this process has both ends: libuv's, under torch's store.

    It closes them in each fork: in a loader's worker they must not be the queues it is given.
    """
    ends = {}
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing
            ends[int(number)] = os.readlink(f"/proc/self/fd/{number}")
    counts = Counter(ends.values())
    yield from (n for n, end in ends.items() if end.startswith("pipe:") and counts[end] == 2)


class Forking:
    """The module `subprocess`, but that programs which are ours become forks of who asks."""

    def __init__(
        self,
        is_ours: Callable[[Sequence[str]], bool],
        become: Callable[[Sequence[str], Mapping[str, Any]], int],
    ) -> None:
        self.is_ours, self.become = is_ours, become

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def Popen(self, words: Sequence[str], **given: Any) -> "subprocess.Popen[bytes]":
        if not self.is_ours(words):
            return subprocess.Popen(words, **given)

        def program() -> int:
            given.get("preexec_fn", int)()
            first = 3
            for kept in sorted((*given.get("pass_fds", ()), *pipes_to_itself())):
                os.closerange(first, kept)
                first = kept + 1
            os.closerange(first, 4096)  # with it the pipe that waits for an exec
            atexit._clear()  # what the process that asks wants done at its own end
            atexit.register(multiprocessing.util._exit_function)
            begin(given["env"])
            return self.become(words, given)

        sys.stdout.flush()  # once, and not by every rank again
        return subprocess.Popen(words, **{**given, "preexec_fn": lambda: leave(program)})


def fork_zygotes() -> None:
    """Have this process fork the one that forks its ranks, where it would start it afresh."""
    from scalebench.launch import ranks
    from scalebench.worker.process import zygote

    def become_zygote(words: Sequence[str], _: Mapping[str, Any]) -> int:
        zygote.main(list(words[words.index("-m") + 2 :]))
        return 0

    ranks.subprocess = Forking(  # type: ignore[assignment]
        lambda words: words[words.index("-m") + 1] == ranks.WORKER, become_zygote
    )


def fork_runs() -> None:
    """Have this process fork the runs that it compares, where it would start them afresh."""
    from scalebench.session.interleaved import run_process

    def become_run(words: Sequence[str], _: Mapping[str, Any]) -> int:
        sys.path[0] = os.getcwd()
        sys.argv[1:] = words[3:]
        runpy.run_module(words[2], run_name="__main__", alter_sys=True)
        return 0

    run_process.subprocess = Forking(  # type: ignore[assignment]
        lambda words: list(words[:3]) == [sys.executable, "-m", "scalebench"], become_run
    )


def fork_scripts() -> None:
    """Have a rank fork the interpreter of a user's script, where it would start it afresh."""
    from scalebench.worker.attach import script
    from scalebench.worker.script import supervise

    def become_script(words: Sequence[str], given: Mapping[str, Any]) -> int:
        del sys.path[0]
        if "OMP_NUM_THREADS" in os.environ:
            torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        return script.main(words[-1])

    supervise.subprocess = Forking(  # type: ignore[assignment]
        lambda words: words[0] == sys.executable and len(words) == 3, become_script
    )


if __name__ == "__main__":
    gc.disable()
    import_all()
    for one in list(weakref.finalize._registry):  # torch's libraries unload themselves
        one.atexit = False
    gc.collect()
    gc.freeze()
    asked = serve(socket.socket(fileno=int(sys.argv[1])))
    leave(lambda: become(asked))
