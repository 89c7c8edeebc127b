"""CUDA by stand-ins that gcc builds: who forks ranks never touches it; old drivers are told."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import ran
from tests.standins import HERE, built

ROOT = Path(__file__).parents[3]

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
from scalebench.worker.process import jobs
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
def test_who_forks_ranks_has_not_initialised_cuda(tmp_path, program, touches):
    """``TOUCHES`` shows that the stand-ins notice."""
    log, libraries = tmp_path / "cuinit", built("cuda.c", "libcuda.so.1").parent
    log.touch()
    done = ran(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([os.fspath(HERE / "on_path"), os.fspath(ROOT)]),
            "LD_LIBRARY_PATH": os.fspath(libraries),
            "CUINIT_LOG": os.fspath(log),
        },
        code=0,
    )
    forking, failure = json.loads(done.stdout)
    assert failure is None
    assert (str(forking) in log.read_text().split()) is touches


LIBRARIES = {
    "libnvidia-ml.so.1": """
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 8; return 0; }
""",
    "libcuda.so.1": """
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 12020; return 0; }
""",
}
SEES = "NVML shows 8 GPUs, and torch sees none: "
SAID = (
    "driver on your system is too old (found version 12020)"
    if torch.version.cuda
    else ("Torch not compiled with CUDA enabled")
)


@pytest.fixture(scope="module")
def scalebench(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    (folder / "train.py").write_text("import torch\n")
    for name, code in LIBRARIES.items():
        source = folder / f"{name}.c"
        source.write_text(code)
        build = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", folder / name, source]
        subprocess.run(build, check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "XDG_CACHE_HOME": str(folder)}
    environment.pop("CUDA_VISIBLE_DEVICES", None)

    def run(*words, code=None):
        command = [sys.executable, "-m", "scalebench", *words]
        return ran(command, cwd=folder, env=environment, code=code)

    return run


@pytest.mark.parametrize(
    "words",
    [("run", "ddp", "--dry-run"), ("run", "--dry-run", "--", "train.py"), ("calibrate",)],
    ids=" ".join,
)
def test_devices_that_torch_does_not_see_are_refused_with_exit_5(scalebench, words):
    ended = scalebench(*words, code=5)
    assert ended.stderr.startswith(f"scalebench: {SEES}") and SAID in ended.stderr
    assert "--device cpu" in ended.stderr and ended.stderr.count("\n") == 1


def test_who_asks_for_the_cpu_gets_it(scalebench):
    assert scalebench("run", "ddp", "--dry-run", "--device", "cpu").returncode == 0


def test_doctor_says_the_same(scalebench):
    findings = json.loads(scalebench("doctor", "--json").stdout)["findings"]
    (told,) = [finding for finding in findings if finding["text"].startswith(SEES)]
    assert told["level"] == "warning" and SAID in told["text"] and told["remedy"]
