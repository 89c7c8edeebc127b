"""No process of a script outlives its launch, however that ends; and who was stopped is named."""

import json
import os
import re
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.conftest import ended
from tests.examples import cases
from tests.integration.conftest import row_of
from tests.processes import left_after

SCRIPT = Path(__file__).parents[1] / "scripts" / "leaves_processes.py"
FLAGS = ("run", "--quick", "--no-report", "--no-trace", "--out", "r")
LIMIT_S = 300.0


@pytest.fixture(autouse=True)
def script(project):
    shutil.copy(SCRIPT, project / "script.py")
    yield
    for path in project.glob("pids*"):
        for pid in path.read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def started_by(project, rank, size):
    end = time.monotonic() + LIMIT_S
    while not (project / f"pids{size}.{rank}").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    found = []
    for pid in (project / f"pids{size}.{rank}").read_text().split():
        try:
            found.append(psutil.Process(int(pid)))
        except psutil.NoSuchProcess:
            continue
    return found


@cases(
    "trouble, ranks, code, told",
    ("hangs", 1, 4, r"time limit of 6 s: .*rank 0 at script\.py:\d+ in hang_here"),
    ("fails", 2, 4, "rank 1: RuntimeError: a trouble of its own"),
    ("ends", 1, 0, ""),
)
def test_what_a_script_has_started_ends_with_its_launch(
    scalebench, project, trouble, ranks, code, told
):
    limit = ("--time-limit", "6s") if trouble == "hangs" else ()
    command = (*FLAGS, "--gpus", str(ranks), *limit, "--", "script.py", trouble, str(ranks))
    scalebench(*command, timeout=LIMIT_S, code=code)
    left = [process for rank in range(ranks) for process in started_by(project, rank, ranks)]
    assert left_after(left, 0.0) == []
    asked = [(project / f"asked{ranks}.{rank}").exists() for rank in range(ranks)]
    assert all(asked), "SIGTERM comes first"
    assert re.search(told, row_of(project / "r", "script", ranks)["reason"] or "")


@pytest.fixture
def no_nohup():
    """Under nohup, SIGHUP is ignored by all below it, as it should be."""
    formerly = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, formerly)


@pytest.mark.usefixtures("no_nohup")
@cases("number, code", (signal.SIGINT, 130), (signal.SIGHUP, 129), (signal.SIGKILL, -9))
def test_what_a_script_has_started_ends_with_the_launcher(start_scalebench, project, number, code):
    launcher = start_scalebench(*FLAGS, "--gpus", "1", "--", "script.py", "hangs", "1")
    family = started_by(project, 0, 1)
    launcher.send_signal(number)
    ended(launcher, code, LIMIT_S)
    assert len(family) == 4 and left_after(family) == []
    if number != signal.SIGKILL:
        assert json.loads((project / "r/summary.json").read_text())["rows"]
        assert (project / "asked1.0").exists(), "SIGTERM comes first"


def test_what_a_script_has_started_ends_when_the_process_that_forks_is_killed(
    start_scalebench, project
):
    launcher = start_scalebench(*FLAGS, "--gpus", "1", "--", "script.py", "hangs", "1")
    family = started_by(project, 0, 1)
    (zygote,) = psutil.Process(launcher.pid).children()
    zygote.kill()
    _, stderr = ended(launcher, 5, LIMIT_S)
    assert "The process that starts the ranks was killed by SIGKILL: scalebench did not" in stderr
    assert len(family) == 4 and left_after(family) == []


def test_a_stopped_rank_of_a_script_is_named(start_scalebench, project):
    limit = ("--gpus", "2", "--time-limit", "8s")
    launcher = start_scalebench(*FLAGS, *limit, "--", "script.py", "hangs", "2")
    stopped = started_by(project, 1, 2)[0]
    stopped.suspend()
    ended(launcher, 4, LIMIT_S)
    reason = row_of(project / "r", "script", 2)["reason"]
    assert reason.startswith("rank 1: still running after the time limit of 8 s"), reason
    assert f"rank 1 was stopped (process {stopped.pid}" in reason


def test_nohup_is_respected(start_scalebench, project):
    nohup = ("sh", "-c", 'trap "" HUP; exec "$@"', "sh")
    limit = ("--time-limit", "5s")
    launcher = start_scalebench(
        *FLAGS, "--gpus", "1", *limit, "--", "script.py", "hangs", "1", before=nohup
    )
    started_by(project, 0, 1)
    os.kill(launcher.pid, signal.SIGHUP)
    launcher.communicate(timeout=LIMIT_S)
    assert launcher.returncode == 4
