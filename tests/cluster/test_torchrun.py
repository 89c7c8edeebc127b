"""A world that torchrun has started, and what becomes of it when one of its processes dies."""

import json
import os
import signal
import time
from pathlib import Path

import psutil

from tests.cluster.conftest import SCRIPT_RUN, SCRIPT_WORDS, check_script_run
from tests.conftest import PATIENCE_S, checked, ended
from tests.examples import cases
from tests.forks import forks
from tests.integration.conftest import summary_of
from tests.processes import left_after, listening_at, wait_for
from tests.standins.nvml import A, B, library, write_answers

RUN = ("run", "ddp", "-k", "static", "--gpus", "1,2", "--out", "r", "--batch-size", "16")
SLOW = ("--workload", "troubled:slow", "--steps", "5", "--quick", "--no-report", "--no-trace")


def torchrun(num_ranks, *arguments):
    """Start a world whose torchrun is a fork; what that starts are interpreters of their own."""
    words = (f"--nproc-per-node={num_ranks}", "-m", "scalebench", *arguments)
    there = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_PORT": "29517"}
    return forks().start("torch.distributed.run", words, Path.cwd(), there)


def cells(project):
    return sorted((project / "r" / "cells").glob("*.json.gz"))


def test_a_world_that_dies_is_kept_and_resumed(project, troubled):
    world = torchrun(2, *RUN, *SLOW)
    wait_for(lambda: len(cells(project)) >= 1 or world.poll() is not None, 120, "a cell")
    assert world.poll() is None, world.communicate()
    family = psutil.Process(world.pid).children(recursive=True)
    (agent,) = [p for p in family if _is_agent(p)]

    # The cells so far and the next ones have one rank: the other process waits in the kernel.
    before, began = sum(agent.cpu_times()[:2]), time.monotonic()
    listening = listening_at(p for p in family if "scalebench" in " ".join(p.cmdline()))
    time.sleep(0.5)
    waited = time.monotonic() - began
    assert sum(agent.cpu_times()[:2]) - before < 0.1 * waited
    assert listening <= {"127.0.0.1", "::1"}

    os.kill(agent.pid, signal.SIGKILL)
    _, errors = world.communicate(timeout=60)
    assert world.returncode != 0
    assert left_after(family) == []
    assert json.loads((project / "r/run.json").read_text())["status"] == "interrupted", errors
    kept = {path.name: path.read_bytes() for path in cells(project)}

    again = torchrun(2, "run", "--resume", "r", "--no-report")
    shown, errors = ended(again, 0)
    assert "ddp-static-graph" in shown
    after = {path.name: path.read_bytes() for path in cells(project)}
    assert {name: after[name] for name in kept} == kept  # nothing done twice
    rows = summary_of(project / "r")["rows"]
    assert all(row["status"] == "ok" for row in rows), rows


def _is_agent(process):
    parent = process.parent()
    here = "scalebench.worker.agent.agent" in process.cmdline()
    return here and (parent is None or "scalebench.worker.agent.agent" not in parent.cmdline())


def test_a_script_of_the_users_own_in_a_world_of_torchrun(project, placed):
    world = torchrun(2, *SCRIPT_RUN, *SCRIPT_WORDS)
    ended(world, 0, 200)
    check_script_run(project, [[0, 0, 2, 2, 0, 1], [1, 1, 2, 2, 0, 1]])


ROOT = Path(__file__).parents[2]


@cases("where", (), ("apart",), ids=["one machine", "two machines"])
def test_every_ranks_gpu_is_watched(tmp_path, where):
    """Each process's NVML shows its own GPU alone, as containers and cgroups have it."""
    answers = []
    for rank, other in enumerate((B, A)):
        path = write_answers(tmp_path / str(rank))
        path.write_text(path.read_text().replace(f"device {other} x\n", ""))
        answers.append(os.fspath(path))
    words = ("--nproc-per-node=2", "-m", "tests.cluster.watched_world", *answers, *where)
    there = {"LD_LIBRARY_PATH": os.fspath(library().parent), "OMP_NUM_THREADS": "1"}
    there = {**os.environ, **there, "MASTER_PORT": "29518"}
    done = checked(forks().run("torch.distributed.run", words, ROOT, PATIENCE_S, there), 0)
    node = json.loads(done.stdout.splitlines()[-1])
    first, second = node["devices"]
    assert [d["uuid"] for d in (first, second)] == [A, B]
    assert [d["states"]["power_w"][0] for d in (first, second)] == [300.0, 450.0]
    times = [t for d in (first, second) for t in d["states"]["time_ns"]]
    assert node["begun_ns"] <= min(times) and max(times) <= node["ended_ns"]
    assert node["unavailable"] == {}
    assert node["host"]["busy_cpu_s"] > 0
    if not where:  # a sibling is of this launch; torchrun itself is not
        traffic = first["traffic"]
        assert (traffic["own_processes"][0], traffic["foreign_processes"][0]) == (1, 1)
