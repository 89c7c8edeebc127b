"""Ranks that are fed by a DataLoader: the same training, and worker processes that end with it."""

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

import scalebench as sb
from scalebench.analysis.run import load_run
from scalebench.launch.local import LocalLauncher
from scalebench.session.plan import Request
from scalebench.spec.presets import PRESETS
from tests.builders.runs import make_cell
from tests.processes import left_after, wait_for

WORKERS = 2
PERSISTENT = sb.Loader(num_workers=WORKERS, persistent_workers=True, pin_memory=True)


def suite_of(*loaders):
    cases = [sb.Case(name=f"c{i}", strategy=sb.Ddp(), loader=x) for i, x in enumerate(loaders)]
    steps = sb.StepPlan(steps=20, trace=False)
    return sb.Suite(
        name="fed", question="?", cases=tuple(cases), workload="mlp-tiny", steps=steps, repeats=1
    )


def losses_of(launch):
    return [rank.loss[: rank.num_trained] for rank in launch.ranks]


def test_losses_are_those_of_resident_batches_at_every_size(project):
    once = sb.Loader(num_workers=1, prefetch_factor=1)  # its workers start anew at every epoch
    suite = suite_of(None, PERSISTENT, once, sb.Loader())
    run = sb.run(suite, [1, 2], out=Path("r"), request=Request(batch_size=512))
    assert all(row.status == "ok" for row in run.summary.rows)
    assert {row.correctness.status for row in run.summary.rows} == {"reference", "verified"}
    results = load_run(Path("r")).results
    for n in (1, 2):
        resident, *loaded = (losses_of(results[f"fed.c{i}.n{n}.r0"]) for i in range(4))
        for losses in loaded:
            for expected, found in zip(resident, losses, strict=True):
                common = min(len(expected), len(found))
                assert common > 4096 // 512 + 2, "no epoch ended within the steps"
                assert found[:common] == expected[:common]


@pytest.fixture
def temporary(monkeypatch):
    """A folder for temporary files; its path is short, as that of a socket has to be."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield Path(folder)


def workers_of_ranks(launcher):
    def found():
        ranks = psutil.Process(launcher.zygote.process.pid).children()
        return {rank: rank.children() for rank in ranks}

    def complete():
        family = found()
        workers = [worker for workers in family.values() for worker in workers]
        at_work = all(sum(w.cpu_times()[:2]) > 0.1 for w in workers)
        return len(family) == 2 and len(workers) == 2 * WORKERS and at_work

    wait_for(complete, 60, "the loaders' workers")
    return found()


def test_a_killed_rank_takes_its_workers_along_and_nothing_is_left(project, temporary):
    """Workers may use every processor and have one thread to compute."""
    fed = {"workload": PRESETS["mlp-tiny"], "loader": PERSISTENT, "limit_s": 60}
    cell = make_cell("endless", 2, steps=sb.StepPlan(steps=10**7), **fed)
    with LocalLauncher() as launcher, ThreadPoolExecutor() as pool:
        launched = pool.submit(launcher.launch, cell, project / "logs")
        ranks = workers_of_ranks(launcher)
        free = set(os.sched_getaffinity(0))
        for rank, workers in ranks.items():
            assert len(rank.cpu_affinity()) == 1
            assert all(set(worker.cpu_affinity()) == free for worker in workers)
            # One computes; one hands over descriptors of batches; one feeds the queue of results.
            assert all(worker.num_threads() <= 3 for worker in workers)
        (victim, its_workers), (other, others_workers) = ranks.items()
        victim.kill()
        assert left_after(its_workers, 4) == []  # the DataLoader's own watch would take 5 s
        assert left_after([other, *others_workers]) == []
        assert launched.result(10).failure.message == "killed by SIGKILL"
        assert list(temporary.glob("pymp-*")) == []
        assert list(launcher.scratch.glob("launch*")) == []


def test_a_workload_of_ones_own_is_refused_before_anything_runs(scalebench, project, troubled):
    done = scalebench("run", "ddp", "-k", "ddp-loader", "--workload", "troubled:healthy", code=2)
    (line,) = done.stderr.strip().splitlines()
    assert "ddp-loader" in line and "troubled:healthy brings its own batches" in line
