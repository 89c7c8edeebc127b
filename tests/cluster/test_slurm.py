"""A real Slurm: runs that it queues, worlds of srun, and a rank that is killed."""

import json
import os
import sys
import time

import pytest

from scalebench.records.files import read_text
from tests.cluster.conftest import SCRIPT_RUN, SCRIPT_WORDS, check_script_run, need
from tests.cluster.slurm import PROGRAMS, Slurm
from tests.conftest import ran
from tests.integration.conftest import SHORT, row_of

RUN = ("run", "ddp", "-k", "static", "--gpus", "2", "--out", "r")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("slurmd needs root")
    need(PROGRAMS, "slurm-wlm and munge")
    made = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


def test_a_submitted_run_with_a_rank_that_is_killed(slurm, project, troubled):
    words = [sys.executable, "-m", "scalebench", "submit", "--slurm", "--nodes=2"]
    words += ["--ranks-per-node=1", "--name=bench", "--time=5:00", "--"]
    words += [*RUN, "--workload", "troubled:killed_on_rank_1", *SHORT]
    submitted = ran(words, env=slurm.environment, code=0)
    assert submitted.stdout.startswith("Job ")
    end = time.monotonic() + 200
    while slurm.jobs():
        assert time.monotonic() < end, "the job does not end"
        time.sleep(0.5)
    (output,) = project.glob("bench-*.out")
    said = output.read_text()
    assert (project / "r" / "summary.json").exists(), said
    assert "2 ranks on 2 nodes (2 x 1), started by srun" in said

    row = row_of(project / "r", "ddp-static-graph", 2)
    assert (row["status"], row["reason"]) == ("failed", "rank 1: killed by SIGKILL"), said
    assert row_of(project / "r", "ddp-static-graph", 1)["status"] == "ok"
    inspected = json.loads(read_text(project / "r/cells/ddp.ddp-static-graph.n2.inspect.json.gz"))
    assert [rank["host"] for rank in inspected["ranks"]] == ["n1", "n2"]
    assert {rank["verification"]["status"] for rank in inspected["ranks"]} == {"verified"}


def test_a_world_of_srun(slurm, project, troubled):
    words = ["srun", "--nodes=2", "--ntasks=2", "--kill-on-bad-exit=1", sys.executable]
    words += ["-m", "scalebench", *RUN, "--workload", "troubled:healthy", *SHORT]
    done = ran(words, env=slurm.environment, code=0)
    assert "2 ranks on 2 nodes (2 x 1), started by srun" in done.stdout
    assert done.stdout.count("started by srun") == 1  # the other rank prints nothing
    row = row_of(project / "r", "ddp-static-graph", 2)
    assert (row["status"], row["correctness"]["status"]) == ("ok", "verified")


def test_a_script_of_the_users_own_in_an_allocation(slurm, project, placed):
    command = ("srun", sys.executable, "-m", "scalebench", *SCRIPT_RUN, *SCRIPT_WORDS)
    words = ["salloc", "--nodes=2", "--ntasks-per-node=1", *command]
    ran(words, env=slurm.environment, code=0)
    check_script_run(project, [[0, 0, 2, 1, 0, 2], [1, 0, 2, 1, 1, 2]])
