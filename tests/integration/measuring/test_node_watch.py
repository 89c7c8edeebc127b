"""What the launcher brings back of the node, with real ranks; foreign load on a real machine."""

import subprocess
import sys
import time
from contextlib import suppress

import pynvml
import pytest

from scalebench.launch.local import LocalLauncher
from scalebench.launch.monitor.node import HostWatch
from scalebench.records.run import CellResult, launched_result
from tests.builders.runs import make_cell


@pytest.fixture(scope="module")
def launcher():
    with LocalLauncher() as launcher:
        launcher.survey()
        yield launcher


def test_the_ranks_cpu_time_is_the_jobs_and_not_foreign(launcher, tmp_path):
    """Two ranks that compute for about a second: what they used is in ``job_cpu_s``."""
    cell = make_cell("ddp", 2)
    launched = launcher.launch(cell, tmp_path)
    assert launched.failure is None
    host = launched.node.host
    trained_s = sum(sum(record.step_s) for record in launched.records)
    assert host.job_cpu_s > 0.1 * trained_s  # all of it, but where others take the processors
    assert host.job_cpu_s <= host.num_processors * host.wall_s + 0.05
    assert host.wall_s >= launched.wall_s
    assert host.unavailable == {}
    assert launched.node.unavailable == {"devices": "the ranks ran on the CPU"}
    assert [record.facts["device_uuid"] for record in launched.records] == [None, None]
    times = (launched.launch_s, launched.wall_s)
    result = launched_result(cell, launched.records, None, "now", times, launched.node)
    again = CellResult.model_validate_json(result.model_dump_json())
    assert again.node == launched.node


def test_a_cuda_launch_without_nvml_says_so_and_ends(launcher, tmp_path):
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        pytest.skip("this machine has NVML")
    launched = launcher.launch(make_cell("plain", 1, device="cuda"), tmp_path)
    assert launched.failure is not None
    assert launched.node.devices == []
    assert launched.node.unavailable == {"devices": "NVML: NVML Shared Library Not Found"}
    assert launched.node.host is not None


SECONDS = 2.0
SPINS = f"import time; end = time.time() + {SECONDS}\nwhile time.time() < end: pass"


def load_beside(command):
    """Return the load while a command that is not the job's runs, or as long without one."""
    begun = HostWatch([])
    if command:
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    else:
        time.sleep(SECONDS)
    return begun.stop()


@pytest.mark.timed
def test_a_busy_stranger_is_foreign_load():
    """A real process that spins for two seconds beside the job.

    The readings without it say how busy the machine is anyway: what it adds has to be ten times
    that, else nothing can be said here.
    """
    loads = [load_beside(command) for command in ((), (sys.executable, "-c", SPINS), ())]
    before, stranger, after = (load.foreign_cores for load in loads)
    figures = f"foreign processors before {before:.3f}, beside {stranger:.3f}, after {after:.3f}"
    if 10 * max(before, after) > stranger:
        pytest.skip(f"inconclusive, others use this machine: {figures}")
    assert stranger == pytest.approx(SECONDS / loads[1].wall_s, abs=0.15), figures
