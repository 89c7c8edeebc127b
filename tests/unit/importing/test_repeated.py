"""Jobs that were run several times: what their logs have in common is no noise of any of them."""

from pathlib import Path

import numpy as np
import pytest

from scalebench.gate.gate import compare
from scalebench.gate.result import WORSE
from scalebench.gate.results import Results
from scalebench.importing.formats import formats
from scalebench.importing.job import Stated, import_log
from scalebench.records.imported import ImportedRun
from scalebench.session.imported import store_imported


def side(
    folder: Path, seed: int, slower: float = 0.0, head: str = "", num_runs: int = 5
) -> Results:
    """Runs of a training whose sequences grow, of 300 steps; runs differ by 0.1 %."""
    generator = np.random.default_rng(seed)
    course = np.repeat([0.2, 0.3, 0.4], 100)
    logs = []
    for run in range(num_runs):
        pace = (1 + slower) * (1 + generator.normal(0, 0.001))
        steps_ms = 1000 * pace * course * (1 + generator.normal(0, 0.01, 300))
        path = folder / f"{seed}-{run}.log"
        path.write_text(
            head
            + "".join(f"iter {i}: loss 4.0, time {ms:.2f}ms\n" for i, ms in enumerate(steps_ms))
        )
        logs.append(import_log(path, Stated(gpus=8), list(formats())))
    imported = ImportedRun(case="job", logs=logs)
    stored = store_imported(imported, ["scalebench", "import"], folder / f"run-{seed}")
    return Results(f"run-{seed}", (stored.summary,))


@pytest.mark.parametrize(("slower", "verdict"), [(0.0, "unchanged"), (0.01, "regressed")])
def test_one_percent_is_found_in_a_training_whose_steps_grow(
    slower: float, verdict: str, tmp_path: Path
) -> None:
    found = compare(side(tmp_path, 1), side(tmp_path, 2, slower))
    step = next(row for row in found.rows if row.metric == "step_s")
    assert step.verdict == verdict
    assert step.low is not None and step.high is not None
    assert step.low < slower < step.high and step.high - step.low < 0.01


HEAD = (
    "Running pytorch {torch} compiled for CUDA 12.4\n"
    "| NVIDIA-SMI {driver}     Driver Version: {driver}     CUDA Version: 12.2 |\n"
    "|   0  NVIDIA H100 80GB HBM3     On  | 00000000:19:00.0 Off |     0 |\n"
)
OLD = HEAD.format(torch="2.6.0+cu124", driver="535.183.06")


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (HEAD.format(torch="2.6.0+cu124", driver="580.126.09"), "driver"),
        (HEAD.format(torch="2.7.1+cu126", driver="535.183.06"), "torch"),
        (OLD.replace("H100 80GB HBM3", "H200"), "devices"),
    ],
)
def test_jobs_on_another_driver_torch_or_gpu_are_compared_only_where_it_is_allowed(
    head: str, name: str, tmp_path: Path
) -> None:
    old, new = side(tmp_path, 1, head=OLD), side(tmp_path, 2, 0.02, head)
    (refused, *_), (told,) = (found := compare(old, new)).rows, found.mismatches
    assert (refused.verdict, told.name) == ("not comparable", name)
    allowed = compare(old, new, allowed=[name]).rows[0]
    assert allowed.low is not None and allowed.high is not None
    assert allowed.low < 0.02 < allowed.high
    unsaid = compare(side(tmp_path, 3), old)
    assert unsaid.rows[0].verdict != "not comparable"
    assert any("only one side's logs name it" in note for note in unsaid.notes)


def test_three_jobs_a_side_find_one_percent(tmp_path: Path) -> None:
    """As many jobs a side share one estimate of their noise."""
    found = [
        compare(side(tmp_path, s, num_runs=3), side(tmp_path, s + 50, 0.01, num_runs=3)).rows[0]
        for s in range(4)
    ]
    assert all(row.verdict in WORSE for row in found)
    assert all(row.low and row.high and row.low < 0.01 < row.high for row in found)
