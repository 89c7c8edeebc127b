"""What the launcher brings back of the node, with real ranks."""

from pathlib import Path

import pynvml
import pytest

from scalebench.launch.local import LocalLauncher
from scalebench.records.outcome import launched_result
from scalebench.records.run import CellResult
from tests.builders.runs import make_cell


def has_nvml() -> bool:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    return True


@pytest.fixture(scope="module")
def launcher():
    with LocalLauncher() as launcher:
        launcher.survey()
        yield launcher


@pytest.mark.timed
def test_the_ranks_cpu_time_is_the_jobs_and_not_foreign(launcher, tmp_path: Path):
    """Two ranks that compute for about a second: what they used is in ``job_cpu_s``."""
    launched = launcher.launch(make_cell("ddp", 2), tmp_path)
    assert launched.failure is None
    host = launched.node.host
    trained_s = sum(sum(record.step_s) for record in launched.records)
    assert host.job_cpu_s > 0.1 * trained_s  # all of it, but where others take the processors
    assert host.job_cpu_s <= host.num_processors * host.wall_s + 0.05
    assert host.wall_s >= launched.wall_s
    assert host.unavailable == {}
    assert launched.node.unavailable == {"devices": "the ranks ran on the CPU"}
    assert [record.facts["device_uuid"] for record in launched.records] == [None, None]


def test_what_was_watched_is_stored(launcher, tmp_path: Path):
    cell = make_cell("plain", 1)
    launched = launcher.launch(cell, tmp_path)
    times = (launched.launch_s, launched.wall_s)
    result = launched_result(cell, launched.records, None, "now", times, launched.node)
    again = CellResult.model_validate_json(result.model_dump_json())
    assert again.node == launched.node
    assert again.node.host.busy_cpu_s > 0


@pytest.mark.skipif(has_nvml(), reason="this machine has NVML")
def test_a_cuda_launch_without_nvml_says_so_and_ends(launcher, tmp_path: Path):
    launched = launcher.launch(make_cell("plain", 1, device="cuda"), tmp_path)
    assert launched.failure is not None
    assert launched.node.devices == []
    assert launched.node.unavailable == {"devices": "NVML: NVML Shared Library Not Found"}
    assert launched.node.host is not None
