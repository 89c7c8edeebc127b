"""Programs in forks of one process that has imported torch, pandas and the rest already.

`python -m scalebench run` imports for two seconds, and the process that it forks ranks from for
three more. What tests ask of a run is not its start: that has tests of its own, with fresh
interpreters. Here a process is forked for each call, with folder, environment and streams of its
own; the process that it starts to fork ranks from is a fork as well, in a session of its own.
"""

import atexit
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[1]
FIRST = {"KINETO_LOG_LEVEL": "5"}
"""What libraries read when they are loaded, as the process that forks ranks is given it."""


class Forks:
    """The tests' end: one program at a time.

    Args:
        python: The interpreter.
        package: The folder that scalebench is imported from.
    """

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
        """Hang up: the other end leaves."""
        self.own.close()
        self.process.wait()

    def run(
        self,
        module: str,
        arguments: Sequence[str],
        cwd: Path,
        limit_s: float,
        environment: Mapping[str, str] = os.environ,
    ) -> "subprocess.CompletedProcess[str]":
        """Run ``python -m MODULE ARGUMENTS`` to its end."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            request = {
                "words": [module, *arguments],
                "cwd": os.fspath(cwd),
                "environment": dict(environment),
            }
            told = [json.dumps(request).encode()]
            socket.send_fds(self.own, told, [out.fileno(), err.fileno()])
            self.own.settimeout(limit_s)
            pid = self._answer()
            try:
                code = self._answer()
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(list(arguments), limit_s) from None
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode())
        return subprocess.CompletedProcess(list(arguments), code, *texts)

    def _answer(self) -> int:
        answer = self.own.recv(100)
        assert answer, "the process that forks has ended"
        return int(answer)


@cache
def forks(python: Path = Path(sys.executable), package: Path = ROOT) -> Forks:
    """Return the one of this process."""
    return Forks(python, package)


def import_all() -> None:
    """Import scalebench, and what its processes import while they work."""
    import scalebench

    for found in pkgutil.walk_packages(scalebench.__path__, "scalebench."):
        if not found.name.endswith(("__main__", "pytest_plugin", "cli.gallery")):
            with suppress(ImportError):  # a framework that is not installed
                importlib.import_module(found.name)
    from scalebench.worker import jobs

    jobs.preload()


def serve(connection: socket.socket) -> dict[str, Any]:
    """Fork for each request and tell its pid and exit code; a fork returns with its request."""
    while True:
        told, descriptors, *_ = socket.recv_fds(connection, 1_000_000, 2)
        if not told:
            sys.exit()
        pid = os.fork()
        if pid == 0:
            connection.close()
            for standard, given in enumerate(descriptors, 1):
                os.dup2(given, standard)
                os.close(given)
            return dict(json.loads(told))
        for given in descriptors:
            os.close(given)
        connection.send(str(pid).encode())
        status = os.waitpid(pid, 0)[1]
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())


def become(request: Mapping[str, Any]) -> None:
    """Run a program as a fresh interpreter runs it with ``-m``."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    module, *arguments = request["words"]
    sys.path[0] = os.getcwd()
    sys.argv[1:] = arguments
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(open(1, "wb", closefd=False))  # noqa: SIM115
    sys.stderr = sys.__stderr__ = io.TextIOWrapper(open(2, "wb", closefd=False))  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    fork_zygotes()
    if "." in module:
        sys.modules.pop(module, None)  # else runpy warns that it is there
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def fork_zygotes() -> None:
    """Have this process fork the one that forks its ranks, where it would start it afresh."""
    from scalebench.launch import zygote_client
    from scalebench.worker import zygote

    class Forking:
        def __getattr__(self, name: str) -> Any:
            return getattr(subprocess, name)

        @staticmethod
        def Popen(words: Sequence[str], **given: Any) -> "subprocess.Popen[bytes]":
            at = words.index("-m")
            if words[at + 1] != zygote_client.WORKER:
                return subprocess.Popen(words, **given)

            def instead() -> NoReturn:
                try:
                    (kept,) = given["pass_fds"]
                    os.closerange(3, kept)
                    os.closerange(kept + 1, 4096)  # with it the pipe that waits for an exec
                    os.environ.clear()
                    os.environ.update(given["env"])
                    gc.enable()
                    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                        signal.signal(number, signal.SIG_DFL)
                    zygote.main(list(words[at + 2 :]))
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(1)

            sys.stdout.flush()  # once, and not by every rank again
            return subprocess.Popen(words, preexec_fn=instead, **given)

    zygote_client.subprocess = Forking()  # type: ignore[assignment]


if __name__ == "__main__":
    import_all()
    gc.collect()
    gc.freeze()
    become(serve(socket.socket(fileno=int(sys.argv[1]))))
