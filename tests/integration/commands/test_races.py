"""Races that really train: what one rank reaches, two reach with the same samples."""

import json

import pytest

from scalebench.analysis.run import load_run
from tests.builders.repository.documents import blocks, commands
from tests.integration.conftest import row_of


def test_the_race_of_the_documents(scalebench, project):
    (suite,) = blocks("docs/time-to-loss.md", "python")
    (project / "race.py").write_text(suite)
    own = next(c for c in commands("docs/time-to-loss.md") if "race.py" in c)
    done = scalebench(*own, "--out", "r", "--no-report", code=0)
    assert "time to loss" in done.stdout and "that of plain after 2048 samples" in done.stdout
    assert "the samples per second" in done.stdout

    results = load_run(project / "r").results.values()
    curves = {
        (r.cell.case, r.cell.repeat): [[p.loss for p in rank.race or ()] for rank in r.ranks]
        for r in results
        if r.cell.purpose == "measure"
    }
    assert set(curves) == {(c, s) for c in ("plain", "ddp-32", "ddp-128") for s in (0, 1)}
    for seed in (0, 1):
        (alone,) = curves["plain", seed]
        one, other = curves["ddp-32", seed]
        assert one == other, "all ranks agree on the loss"
        assert one == pytest.approx(alone, rel=1e-3), "two ranks train on what one trains on"
        large = curves["ddp-128", seed][0]
        assert large[0] == pytest.approx(alone[0], rel=1e-5), "the same initial parameters"
        assert large[-1] != pytest.approx(alone[-1], rel=1e-3)
        assert alone[-1] < 0.9 * alone[0], "it learns"
    assert curves["plain", 0][0][0] != curves["plain", 1][0][0]

    points = [r.ranks[1].race or () for r in results if r.cell.case == "ddp-32" and r.ranks[1:]]
    norms = [point.step_gradients for race in points for point in race]
    taken = [one for one in norms if one is not None]
    assert len(taken) == len(norms) - 2, "before a race there was no step"
    for one in taken:
        assert (one.num_batches, one.batch_size) == (2, 16)
        assert one.square_of_mean < one.mean_square < 4 * one.square_of_mean + 1
    race = row_of(project / "r", "ddp-32", 2)["race"]
    assert race["noise_scale_of_steps"] or "noise" in race["unavailable"]["noise_scale_of_steps"]
    assert race["statistical_efficiency"]["value"] == pytest.approx(1, abs=0.02)
    assert race["num_reached"] == 2
    assert race["bytes_to_target"]["value"] > 0
    plan = json.loads((project / "r" / "run.json").read_text())["plan"]
    assert {cell["seed"] for cell in plan if cell["purpose"] == "measure"} == {0, 1}


WITHOUT_LOCKSTEP = """
from scalebench import (
    Case, FedAvg, LocalSgd, ParameterServer, PipeDream, PipeDream2BW, Pipeline, Plain, Race, Recipe,
    Suite,
)

R = Recipe(optimizer="sgd", learning_rate=0.02)
METHODS = {
    "plain": Plain(),
    "local": LocalSgd(period=4),
    "clients": FedAvg(period=2, clients=5, clients_per_rank=2),
    "server": ParameterServer(),
    "1f1b": Pipeline(schedule="1f1b", microbatches=4),
    "stashing": PipeDream(),
    "2bw": PipeDream2BW(microbatches=4),
}
SUITE = Suite(
    name="apart",
    question="Do launches without lockstep come to their end?",
    cases=tuple(
        Case(name=name, strategy=method, batch_size=32, recipe=R)
        for name, method in METHODS.items()
    ),
    workload="mlp",
    race=Race(samples=1024, evaluate_every=256, target_loss=2.25),
    repeats=1,
)
"""


def test_races_without_lockstep(scalebench, project):
    (project / "apart.py").write_text(WITHOUT_LOCKSTEP)
    done = scalebench(
        "run", "apart.py", "--gpus", "2", "--out", "r", "--no-report", "--verbose", code=0
    )
    for case, all_reduces in (("local", 8), ("clients", 8)):
        row = row_of(project / "r", case, 2)
        assert row["correctness"]["status"] == "unverified"
        assert "not synchronous" in row["correctness"]["reason"]
        assert "not traced" in row["unavailable"]["wire_bytes"]
        assert row["predicted_memory_bytes"] is None
        points = load_run(project / "r").results[f"apart.{case}.n2.r0"].ranks[0].race
        assert points[-1].sent_bytes == pytest.approx(all_reduces * 4 * row["num_parameters"])
    piped = {"plain": 1, "1f1b": 2, "stashing": 2, "2bw": 2}
    ranks = {
        c: load_run(project / "r").results[f"apart.{c}.n{n}.r0"].ranks for c, n in piped.items()
    }
    losses = {case: [[p.loss for p in rank.race or ()] for rank in ranks[case]] for case in piped}
    (alone,) = losses["plain"]
    assert losses["1f1b"] == 2 * [pytest.approx(alone, rel=1e-4)], "evaluated in stages"
    for case, num_versions in (("stashing", (2, 1)), ("2bw", (2, 2))):
        one, other = losses[case]
        assert one == other and one[0] == pytest.approx(alone[0], rel=1e-5) and one[-1] < one[0]
        assert one[-1] != pytest.approx(alone[-1], rel=1e-6), "gradients are old"
        assert ranks[case][0].facts["staleness"] == {"0": 1, "1": 30}
        row = row_of(project / "r", case, 2)
        for stage, versions in zip(row["lockstep"]["stages"], num_versions, strict=True):
            for figure in ("staleness", "weight_versions"):
                assert stage[figure] == stage[f"{figure}_law"] == versions - (figure[0] == "s")
            assert stage["stash_bytes"] == stage["stash_law_bytes"]
            assert (stage["stash_bytes"] > 0) == (versions > 1)
        in_lockstep = row_of(project / "r", "1f1b", 2)["race"]["samples_to_target"]["value"]
        assert row["race"]["num_reached"] == 1
        assert row["race"]["samples_to_target"]["value"] == pytest.approx(in_lockstep, rel=0.1)
    assert "Weights of earlier steps" in done.stdout
    server = load_run(project / "r").results["apart.server.n2.r0"].ranks[0]
    staleness = server.facts["staleness"]
    assert isinstance(staleness, dict)
    assert sum(staleness.values()) == 2 * 1024 // 32, "all batches of all steps, whoever had them"


DYING = """
import os
import signal
import time

import torch
from scalebench import Workload

MORTAL, LAST = 2, 6
SAMPLES_OF_NAN, SAMPLES_OF_WAITING = 4, 6

def model(shard):
    data = torch.Generator().manual_seed(shard.rank)
    held_out = torch.Generator().manual_seed(99)

    class Points:
        def __iter__(self):
            number = 0
            while True:
                number += 1
                x = torch.randn(shard.batch_size, 4, generator=data)
                if number == LAST and shard.batch_size == SAMPLES_OF_WAITING:
                    time.sleep(0.5 * (MORTAL - shard.rank + 1) if shard.rank else 0)
                if shard.rank == MORTAL and number == LAST:
                    if shard.batch_size != SAMPLES_OF_NAN:
                        os.kill(os.getpid(), signal.SIGKILL)
                    x[0] = float("nan")
                yield x, x.sum(1, keepdim=True)

    def loss(module, batch):
        return torch.nn.functional.mse_loss(module(batch[0]), batch[1])

    torch.manual_seed(0)
    unseen = [torch.randn(8, 4, generator=held_out) for _ in range(6)]
    evaluation = [(x, x.sum(1, keepdim=True)) for x in unseen]
    return Workload(torch.nn.Linear(4, 1), Points(), loss, evaluation=evaluation)
"""

WITH_A_DEATH = """
from scalebench import Case, LocalSgd, ParameterServer, Plain, Race, Recipe, Suite

R = Recipe(optimizer="sgd", learning_rate=0.02)
METHODS = {
    "plain": Plain(),
    "asynchronous": ParameterServer(),
    "bounded": ParameterServer(staleness_bound=2),
    "backup": ParameterServer(staleness_bound=0, backup_workers=1),
    "synchronous": ParameterServer(staleness_bound=0),
    "priority": ParameterServer(staleness_bound=0, pushes="priority"),
    "two servers": ParameterServer(servers=2),
    "three servers": ParameterServer(servers=3),
}
NAN = {
    "local": LocalSgd(period=4),
    "asynchronous": ParameterServer(),
}
SUITE = Suite(
    name="mortal",
    question="Who goes on without a worker?",
    cases=tuple(
        Case(name=name.replace(" ", "-"), strategy=method, batch_size=24, recipe=R)
        for name, method in METHODS.items()
    )
    + tuple(
        Case(name=f"nan-{name}", strategy=method, batch_size=12, recipe=R)
        for name, method in NAN.items()
    ),
    race=Race(samples=720, evaluate_every=72, target_loss=2.0),
    repeats=1,
)
"""


def test_a_worker_that_is_killed_takes_nothing_from_the_others(scalebench, project):
    """The killed worker trains 5 of its batches of 8 samples, of 30 in a race of 720."""
    (project / "mine.py").write_text(DYING)
    (project / "mortal.py").write_text(WITH_A_DEATH)
    arguments = ("--workload", "mine:model", "--gpus", "3", "--out", "r", "--no-report")
    done = scalebench("run", "mortal.py", *arguments, code=4)
    assert "rank 2: killed by SIGKILL" in done.stdout + done.stderr
    results = load_run(project / "r").results
    for case, samples in (("asynchronous", 720), ("bounded", 720 - 25 * 8)):
        result = results[f"mortal.{case}.n3.r0"]
        assert result.status == "ok"
        assert [record.rank for record in result.ranks] == [0, 1]
        assert [(one.rank, one.message) for one in result.lost] == [(2, "killed by SIGKILL")]
        points = result.ranks[0].race
        assert points is not None and len(points) == 11
        left_over = samples - points[-1].samples
        assert left_over in (0, 8), "at most the batch that nobody asked for again"
        assert (points[-1].loss or 9) < 0.5 * (points[0].loss or 0)
        assert list(result.ranks[0].facts["lost_ranks"]) == ["2"]
        row = row_of(project / "r", case, 3)
        assert row["stamps"][0].startswith("lost a rank: rank 2 (killed by SIGKILL) after ")
        for name in ("throughput", "speedup", "efficiency"):
            assert row[name] is None and "rank was lost" in row["unavailable"][name]
        assert row["race"]["num_reached"] == 1, points
    backup = results["mortal.backup.n3.r0"]
    assert (backup.status, len(backup.ranks)) == ("ok", 2)
    lost_two = results["mortal.two-servers.n3.r0"]
    assert (lost_two.status, len(lost_two.ranks)) == ("ok", 2)
    for record in lost_two.ranks:
        assert list(record.facts["lost_ranks"]) == ["2"], "each of the servers knows"
    for case in ("synchronous", "priority", "three-servers"):
        failed = results[f"mortal.{case}.n3.r0"]
        assert (failed.status, failed.reason) == ("failed", "rank 2: killed by SIGKILL")
    failed = results["mortal.nan-local.n3.r0"]
    assert failed.status == "failed"
    assert failed.reason == "the loss is not finite at step 5 on rank 2"
    kept = results["mortal.nan-asynchronous.n3.r0"]
    told = "the gradient of this rank's batch 6 is not finite; it is not pushed"
    assert (kept.status, len(kept.ranks)) == ("ok", 2)
    (lost,) = kept.lost
    assert lost.rank == 2 and told in lost.message


def test_a_workload_without_held_out_samples_is_told_how_to_give_them(
    scalebench, project, troubled
):
    (suite,) = blocks("docs/time-to-loss.md", "python")
    (project / "race.py").write_text(suite)
    arguments = ("--gpus", "1", "--workload", "troubled:healthy", "--repeats", "1", "--no-report")
    done = scalebench("run", "race.py", "-k", "plain", *arguments, code=2)
    assert "has no held-out samples for a race. Give Workload(evaluation=...)" in done.stderr
    assert "Traceback" not in done.stderr
