"""What a forked process can be asked to do: train as a rank, survey the machine, describe.

A rank tells how far it has come when it is asked, even while it hangs. One that waits in a
collective cannot be asked through its training loop. A thread that sleeps until a signal comes
can: it counts the collectives that this rank has called. The rank that the others wait for has
called fewer.
"""

import faulthandler
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch.distributed as dist

from scalebench.records.paths import LaunchPaths
from scalebench.spec.base import Record
from scalebench.spec.probes import InjectedFault
from scalebench.worker import rank, survey
from scalebench.worker.collectives import probes
from scalebench.worker.process.failure import inject
from scalebench.worker.process.setup import enter, redirect_output

_JOBS = {
    "cell": rank.run_cell,
    "shared": rank.run_shared,
    "probe": probes.run_probe,
    "survey": survey.run_survey,
    "describe": survey.run_describe,
    "compile": survey.run_compile,
    "schedule": survey.run_schedule,
}

_PRELOADED = (
    "torch.distributed",
    "torch.distributed.optim",
    "torch.nn.parallel",
    "torch.profiler",
    "torch.utils.checkpoint",
    "torch.utils.data",
    "torch._dynamo",
)


def preload() -> None:
    """Import and build now what ranks would otherwise each import and build for themselves."""
    for name in _PRELOADED:
        import_module(name)
    kinds: list[type[Record]] = [Record]
    for kind in kinds:
        kinds += kind.__subclasses__()
        kind.model_rebuild()


def run(request: dict[str, Any]) -> int:
    """Do one job in this freshly forked process; return its exit code.

    Args:
        request: ``job`` (a name of the table above), ``log`` (file for output) and what the job
            itself needs. ``environment`` is added to the process environment first,
            ``place`` is entered, and ``fault`` is injected.
    """
    redirect_output(Path(request["log"]))
    streams = (sys.stdout, sys.stderr)
    os.environ.update(request.get("environment", {}))
    enter(request.get("place", {}))
    if "fault" in request:
        inject(InjectedFault.model_validate(request["fault"]), request["rank"])
    faulthandler.enable()
    if "folder" in request:
        answer_when_asked(LaunchPaths(Path(request["folder"])).position(request["rank"]))
    try:
        return _JOBS[request["job"]](request)
    finally:
        for stream in (*streams, sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # the job may have closed it
                stream.flush()


ASKED = signal.SIGUSR1


def answer_when_asked(answer: Path) -> None:
    """Have `ASKED` write the stacks of all threads to the log, and the position to a file.

    The thread sleeps in the kernel until then: it costs the training nothing.

    Args:
        answer: Gets the number of collectives, in decimal digits.
    """
    heard, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(ASKED, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    faulthandler.register(ASKED, all_threads=True, chain=True)

    def listen() -> None:
        while True:
            numbers = heard.recv(64)
            if not numbers:
                return
            if ASKED in numbers:
                answer.write_text(str(num_collectives()))

    threading.Thread(target=listen, name="position", daemon=True).start()
    _open_ends.append((heard, wake))


_open_ends: list[tuple[socket.socket, socket.socket]] = []
"""What has to stay open for the rest of the process's life."""


def num_collectives() -> int:
    """Return how many collectives this process has called in groups that hold every rank."""
    if not dist.is_initialized():
        return 0
    groups = [g for g in dist.distributed_c10d._world.pg_map if g.size() == dist.get_world_size()]
    numbers = (g._get_sequence_number_for_group() for g in groups)  # type: ignore[attr-defined]
    return sum(numbers)
