"""What a forked process can be asked to do: train as a rank, survey the machine, describe."""

import faulthandler
import os
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from scalebench.records.paths import LaunchPaths
from scalebench.spec.probes import InjectedFault
from scalebench.worker import rank, survey
from scalebench.worker.collectives import probes
from scalebench.worker.process.failure import inject
from scalebench.worker.process.position import answer_when_asked
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
    """Import now what ranks would otherwise each import for themselves."""
    for name in _PRELOADED:
        import_module(name)


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
