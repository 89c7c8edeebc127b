"""The program around srun notes when it hears of a failure, and when all ranks are stopped."""

import sys
import time
from pathlib import Path

import pytest

from scalebench.records.fault_events import AGENT, FaultFolder
from scalebench.worker.checkpoints.slurm_step import run_step

STOPPING_S = 0.2
FAILING = f"""
import sys, time
print("rank 1: srun: error: no line of srun's", file=sys.stderr, flush=True)
time.sleep({STOPPING_S})
print("srun: error: n1: task 1: Killed", file=sys.stderr, flush=True)
time.sleep({STOPPING_S})
print("srun: error: n1: task 0: Terminated", file=sys.stderr, flush=True)
sys.exit(137)
"""


def test_a_failure_is_noticed_with_the_first_task_that_srun_names(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, began = FaultFolder(tmp_path), time.monotonic_ns()
    assert run_step(folder, [sys.executable, "-c", FAILING]) == 137
    noticed, stopped = folder.events(0, AGENT)
    assert (noticed.name, stopped.name) == ("noticed", "stopped")
    assert noticed.time_ns - began >= STOPPING_S * 1e9
    assert stopped.time_ns - noticed.time_ns >= STOPPING_S * 1e9
    assert "n1: task 0: Terminated" in capfd.readouterr().err, "what srun says is kept"


def test_nothing_is_noted_of_ranks_that_end_by_themselves(tmp_path: Path) -> None:
    folder = FaultFolder(tmp_path)
    assert run_step(folder, [sys.executable, "-c", ""]) == 0
    assert folder.events(0, AGENT) == []
