"""A host loses its link: the others notice by their time-out, and the job goes on afterwards."""

import pytest

from scalebench.launch.local import LocalLauncher
from scalebench.session.recovery import faults
from scalebench.spec.presets import PRESETS
from scalebench.spec.recovery import HANG_TIMEOUT_S, Recovery
from scalebench.spec.virtual_hosts import VirtualHosts
from tests.builders.runs import make_cell

SMALL = PRESETS["gpt-tiny"].model_copy(update={"layers": 1, "width": 32, "context": 16})
HOSTS = VirtualHosts(link_bit_per_s=(1_000_000_000,))


def test_a_lost_link_is_noticed_by_a_time_out_and_the_job_goes_on(tmp_path):
    plan = Recovery(directory=str(tmp_path), faults=("link",), fault_repeats=1, elastic=False)
    changes = {"purpose": "fail", "recovery": plan, "workload": SMALL, "virtual_hosts": HOSTS}
    cell = make_cell("ddp", 2).model_copy(update=changes)
    with LocalLauncher() as launcher:
        launcher.move_to(HOSTS, 2)
        result = faults.measure_faults(launcher, cell, tmp_path / "logs", "now")
    assert result.status == "ok", result.reason
    (found,) = result.faults
    assert (found.kind, found.restarted_by) == ("link", "scalebench")
    assert found.phases_s["notice"] >= HANG_TIMEOUT_S - 0.5  # a step may have begun before
    assert sum(found.phases_s.values()) == pytest.approx(found.total_s)
