"""Jobs that were run several times: what their logs have in common is no noise of any of them."""

from pathlib import Path

import numpy as np
import pytest

from scalebench.gate.gate import compare
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
