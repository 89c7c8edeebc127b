"""Races that really train: what one rank reaches, two reach with the same samples."""

import json
from pathlib import Path

import pytest

from scalebench.analysis.run import load_run
from tests.conftest import Scalebench
from tests.integration.conftest import row_of
from tests.integration.test_docs import blocks, commands

NO_EVALUATION = """
import torch
from scalebench import Workload

def model(shard):
    def batches():
        while True:
            yield torch.ones(shard.batch_size, 4)

    class Forever:
        def __iter__(self):
            return batches()

    return Workload(torch.nn.Linear(4, 1), Forever(), lambda module, x: module(x).square().mean())
"""


@pytest.mark.untimed
def test_the_race_of_the_documents(scalebench: Scalebench, project: Path) -> None:
    (suite,) = blocks("docs/time-to-loss.md", "python")
    (project / "race.py").write_text(suite)
    _bundled, own = commands("docs/time-to-loss.md")
    done = scalebench(*own, "--out", "r", "--no-report")
    assert done.returncode == 0, done.stderr
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

    race = row_of(project / "r", "ddp-32", 2)["race"]
    assert race["statistical_efficiency"]["value"] == pytest.approx(1, abs=0.02)
    assert race["num_reached"] == 2
    assert race["bytes_to_target"]["value"] > 0
    plan = json.loads((project / "r" / "run.json").read_text())["plan"]
    assert {cell["seed"] for cell in plan if cell["purpose"] == "measure"} == {0, 1}


@pytest.mark.untimed
def test_a_workload_without_held_out_samples_is_told_how_to_give_them(
    scalebench: Scalebench, project: Path
) -> None:
    (suite,) = blocks("docs/time-to-loss.md", "python")
    (project / "race.py").write_text(suite)
    (project / "mine.py").write_text(NO_EVALUATION)
    arguments = ("--gpus", "1", "--workload", "mine:model", "--repeats", "1", "--no-report")
    done = scalebench("run", "race.py", "-k", "plain", *arguments)
    assert done.returncode == 2
    assert "has no held-out samples for a race. Give Workload(evaluation=...)" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.untimed
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--steps", "5"), "Leave out --steps"),
        (("--batch-size", "64"), "Leave out --batch-size"),
        (("--target-loss", "0"), "0"),
    ],
)
def test_options_that_contradict_a_race(
    scalebench: Scalebench, options: tuple[str, ...], told: str
) -> None:
    done = scalebench("run", "batch", "--gpus", "1,2", *options)
    assert done.returncode == 2 and told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.untimed
def test_a_target_loss_is_for_races_only(scalebench: Scalebench) -> None:
    done = scalebench("run", "ddp", "--gpus", "1,2", "--target-loss", "2")
    assert done.returncode == 2
    assert "--target-loss" in done.stderr and "no race" in done.stderr
