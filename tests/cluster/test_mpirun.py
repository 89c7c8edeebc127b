"""A world that Debian's Open MPI has started."""

import json
import os
import sys

import pytest

from tests.cluster.conftest import SCRIPT_RUN, SCRIPT_WORDS, check_script_run, need
from tests.conftest import ran
from tests.integration.conftest import SHORT, row_of

RUN = ("run", "ddp", "-k", "static", "--gpus", "2,3", "--out", "r")


def mpirun(num_ranks, *arguments):
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = ("mpirun", "--oversubscribe", "-n", str(num_ranks), sys.executable)
    return ran([*command, "-m", "scalebench", *arguments], env={**os.environ, **allowed})


@pytest.fixture(autouse=True)
def openmpi():
    need(("mpirun",), "openmpi-bin")


def test_a_world_of_mpirun(project, troubled):
    done = mpirun(2, *RUN, "--workload", "troubled:healthy", *SHORT)
    assert done.returncode == 0, done.stderr
    assert "2 ranks on 1 node (1 x 2), started by mpirun" in done.stdout
    assert done.stdout.count("verified") >= 2
    assert row_of(project / "r", "ddp-static-graph", 2)["status"] == "ok"
    reason = row_of(project / "r", "ddp-static-graph", 3)["reason"]
    assert reason == "3 ranks are more than the 2 that mpirun started"
    assert json.loads((project / "r/run.json").read_text())["spec"]["launcher"] == "mpirun"


def test_a_script_of_the_users_own_in_a_world_of_mpirun(project, placed):
    done = mpirun(2, *SCRIPT_RUN, *SCRIPT_WORDS)
    assert done.returncode == 0, done.stderr
    check_script_run(project, [[0, 0, 2, 2, 0, 1], [1, 1, 2, 2, 0, 1]])


def test_a_complaint_is_one_line_and_ends_the_world(project):
    refused = mpirun(2, "run", "ddp", "--launcher", "lab", "--link", "50mbit")
    lines = [line for line in refused.stderr.splitlines() if line.startswith("scalebench:")]
    assert len(lines) == 1 and "Leave out --launcher" in lines[0]


def test_links_are_calibrated_between_the_ranks_of_a_world(project):
    flags = ("--gpus", "2", "--op", "all_reduce", "--max-bytes", "512", "--repeats", "3")
    done = mpirun(2, "calibrate", *flags, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert {point["world_size"] for point in told["points"]} == {2}
    assert len(told["points"]) > 4 and not any(point["num_wrong"] for point in told["points"])
