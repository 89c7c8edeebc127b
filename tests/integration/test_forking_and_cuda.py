"""The process that forks ranks has never touched CUDA: a context does not survive a fork."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PATIENCE_S
from tests.standins import HERE, built

ROOT = Path(__file__).parents[2]

LAUNCHES = """
import json
from pathlib import Path
from scalebench.launch.local import LocalLauncher
from tests.builders.runs import make_cell

with LocalLauncher() as launcher:
    launcher.survey()
    launched = launcher.launch(make_cell("ddp", 2), Path("logs"))
    print(json.dumps([launcher.zygote.process.pid, launched.failure and launched.failure.message]))
"""
PRELOADS = """
import json, os
from scalebench.worker import jobs
from scalebench.worker.agent import agent, bridge
jobs.preload()
import triton
print(json.dumps([os.getpid(), None if "stand" in triton.__doc__.lower() else "not the stand-in"]))
"""
TOUCHES = """
import json, os
from triton.runtime import driver
try:
    driver.active.get_current_target()
except RuntimeError:
    print(json.dumps([os.getpid(), None]))
"""


@pytest.mark.parametrize(
    ("program", "touches"), [(LAUNCHES, False), (PRELOADS, False), (TOUCHES, True)]
)
def test_who_forks_ranks_has_not_initialised_cuda(tmp_path: Path, program: str, touches: bool):
    """``TOUCHES`` shows that the stand-ins notice."""
    log, libraries = tmp_path / "cuinit", built("cuda.c", "libcuda.so.1").parent
    log.touch()
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([os.fspath(HERE / "on_path"), os.fspath(ROOT)]),
            "LD_LIBRARY_PATH": os.fspath(libraries),
            "CUINIT_LOG": os.fspath(log),
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    forking, failure = json.loads(done.stdout)
    assert failure is None
    assert (str(forking) in log.read_text().split()) is touches
