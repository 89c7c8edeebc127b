"""Runs on virtual hosts from the command line: what their rows and their readers are told."""

import json
import shutil
import time
from pathlib import Path

import pytest

from scalebench.errors import ExitCode
from scalebench.launch.local import LocalLauncher
from scalebench.machine import num_cores
from scalebench.session.recovery import faults
from scalebench.spec.presets import PRESETS
from scalebench.spec.recovery import HANG_TIMEOUT_S, Recovery
from scalebench.spec.world import VirtualHosts
from tests.builders.repository.documents import commands
from tests.builders.runs import make_cell
from tests.conftest import PATIENCE_S, ended
from tests.integration.conftest import complaint

DDP = ("run", "ddp", "-k", "ddp and not accumulate and not bucket")
PACED = ("--workload", "paced", "--repeats", "1", "--no-report", "--out", "r")
LAB = ("--launcher", "lab", "--link", "100mbit", "--cpus-per-rank", "0.2")


def rows_of(project):
    rows = json.loads((project / "r" / "summary.json").read_text())["rows"]
    return {(row["case"], row["world_size"]): row for row in rows}


def test_a_paced_run_at_more_ranks_than_cores_is_a_number(scalebench, project):
    (documented,) = commands("docs/virtual-hosts.md")
    done = scalebench(*documented, "--no-report", "--out", "r", code=0)
    assert done.stdout.startswith("Virtual hosts on this machine")
    assert "virtual hosts" in done.stdout.splitlines()[0].lower()
    assert "100mbit" in done.stdout.splitlines()[0]
    assert "instead of arithmetic" in done.stdout

    rows = rows_of(project)
    assert set(rows) == {("plain", 1), ("ddp", 1), ("ddp", 2), ("ddp", 4)}
    for (case, num_ranks), row in rows.items():
        assert row["status"] == "ok"
        assert row["virtual_hosts"] is True
        assert (row["link"], row["cpus_per_rank"]) == ("100mbit", 0.2)
        assert row["link_bit_per_s"] == [100_000_000] * num_ranks
        assert row["oversubscribed"] is False
        assert "paced" in row["stamps"]
        assert row["correctness"]["status"] == ("reference" if case == "plain" else "verified")

    # A busy machine makes all of it slower, nothing faster; a wrong unit is wrong by eight or more.
    # 16 samples of 10 ms. A rank's part of them takes its part of the time.
    assert 0.16 < rows["plain", 1]["step_s"]["value"] < 0.16 * 4
    # 4 bytes of 393,216 parameters leave and enter each of 2 hosts, after a forward pass.
    transfer_s = 4 * 393_216 * 8 / (100e6 * 1448 / 1514)
    assert rows["ddp", 2]["step_s"]["value"] > 0.08 / 3 + 0.9 * transfer_s
    assert rows["ddp", 2]["step_s"]["value"] < 4 * (0.08 + transfer_s)
    exposed = rows["ddp", 2]["exposed_comm_s"]["value"]
    assert 0.3 * transfer_s < exposed < 4 * transfer_s

    # The link gives the transfer, N=1 the rest: no step was looked at that is predicted.
    for num_ranks in (2, 4):
        row = rows["ddp", num_ranks]
        (told,) = row["prediction"]["operations"]
        wire_s = 2 * (num_ranks - 1) / num_ranks * transfer_s
        assert 0.9 * wire_s < told["predicted_s"] < 4 * wire_s
        assert told["predicted_s"] < row["predicted_step_s"] < 4 * row["step_s"]["value"]
        assert row["prediction"]["longer_s"] is not None, "ranks played the step without its model"
    left_out = rows["ddp", 4]["prediction"]["left_out"]
    assert left_out["link_world_sizes"] == [2]

    scalebench("run", "--resume", "r", "--no-report", code=0)


def test_a_run_is_not_resumed_where_its_hosts_cannot_be_made(scalebench, project, monkeypatch):
    scalebench(
        *DDP, "--gpus", "1", *LAB, *PACED, "--batch-size", "4", "--quick", "--no-trace", code=0
    )
    before = (project / "r" / "run.json").read_text()
    empty = project / "no-programs"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    assert "install iproute2" in complaint(scalebench("run", "--resume", "r"), code=5)
    assert (project / "r" / "run.json").read_text() == before


def test_more_ranks_than_shares_are_oversubscribed_and_a_link_that_cannot_hold_is_stamped(
    scalebench, project
):
    most = num_cores()
    arguments = ("--launcher", "lab", "--link", "600mbit", "--cpus-per-rank", "0.9")
    done = scalebench(
        *(*DDP, "--gpus", f"1,{2 * most}", *arguments, *PACED, "--batch-size", str(2 * most)),
        *("--steps", "2", "--no-trace"),
        code=0,
    )
    assert "link not held" in done.stdout
    row = rows_of(project)["ddp", 2 * most]
    assert row["oversubscribed"] is True
    assert any(stamp.startswith("link not held: ") for stamp in row["stamps"])
    assert rows_of(project)["plain", 1]["oversubscribed"] is False
    assert not any("link not held" in stamp for stamp in rows_of(project)["plain", 1]["stamps"])


def test_bad_input_is_one_line_with_the_remedy(scalebench, project):
    for arguments, words in (
        ((*LAB[:4], "--cpus-per-rank", "999"), ["999", "more CPU than there is", "at most"]),
        ((*LAB[:3], "50mbit,50mbit"), ["2 rates", "3 hosts", "one for all"]),
        ((*LAB[:4], "--device", "cuda"), ["--device cuda"]),
    ):
        done = scalebench("run", "ddp", "--gpus", "1,3", "--batch-size", "12", *arguments)
        line = complaint(done)
        assert all(word in line for word in words), line
        assert not (project / "reports").exists()


@pytest.mark.parametrize("command", ["run ddp -k static --quick --gpus 1,2", "calibrate --gpus 2"])
def test_ranks_that_could_not_connect_are_not_started(start_scalebench, command):
    began = time.monotonic()
    alone = start_scalebench(*command.split(), before=("unshare", "-rn"))
    shown, told = ended(alone, ExitCode.ENVIRONMENT)
    assert "nothing can connect to it here" in told and "ip link set lo up" in told
    assert "Traceback" not in told and not shown
    assert time.monotonic() - began < PATIENCE_S / 3, "it waited for ranks that cannot connect"


SCRIPT = Path(__file__).parents[1] / "integration" / "scripts" / "plain_ddp.py"
SCRIPT_LAB = ("--launcher", "lab", "--link", "5mbit")
NUM_PARAMETERS = 64 * 256 + 256 + 256 * 10 + 10


def test_a_script_sends_its_gradients_over_the_link(scalebench, project):
    shutil.copy(SCRIPT, project)
    flags = ("--quick", "--gpus", "1,2", "--no-report", "--out", "r", *SCRIPT_LAB)
    scalebench("run", *flags, "--", "plain_ddp.py", code=0)
    rows = json.loads((project / "r" / "summary.json").read_text())["rows"]
    row = next(row for row in rows if row["world_size"] == 2)
    assert row["virtual_hosts"] is True
    assert row["num_parameters"] == NUM_PARAMETERS
    # All of them leave and enter each of 2 hosts; a busy machine is slower, a wrong unit by eight.
    transfer_s = 4 * NUM_PARAMETERS * 8 / (5e6 * 1448 / 1514)
    assert 0.3 * transfer_s < row["exposed_comm_s"]["value"] < 4 * transfer_s
    assert row["payload_bytes"] == 4 * NUM_PARAMETERS


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
