"""How long ``scalebench gate`` takes on two runs of fifty rows, fresh processes."""

import math
import random
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.verdict import against_limit, print_section
from scalebench.gate.baselines import read_summary
from scalebench.records.files import write_model
from scalebench.records.summary import StepSamples, Summary
from scalebench.stats import estimate_over_launches

TARGET_S = 1.5
ROUNDS = 11
NUM_ROWS, NUM_LAUNCHES, NUM_STEPS = 50, 5, 100
GALLERY = Path(__file__).parents[1] / "reports" / "gallery" / "ddp-2-cores" / "summary.json"
SCALEBENCH = Path(sys.executable).with_name("scalebench")


def _run(seed: int) -> Summary:
    """Return a run of fifty rows, made of a committed one, traces and budgets included."""
    noise = random.Random(seed)
    summary = read_summary(GALLERY)
    rows = []
    for index in range(NUM_ROWS):
        model = summary.rows[index % len(summary.rows)]
        samples = []
        for repeat in range(NUM_LAUNCHES):
            level = 0.02 * math.exp(noise.gauss(0, 0.01))
            steps = [level * math.exp(noise.gauss(0, 0.03)) for _ in range(NUM_STEPS)]
            samples.append(StepSamples(repeat=repeat, step_s=steps))
        medians = [median(launch.step_s) for launch in samples]
        changes = {"case": f"{model.case}-{index}", "samples": samples}
        step_s = {"step_s": estimate_over_launches(medians)}
        rows.append(model.model_copy(update=changes | step_s))
    return summary.model_copy(update={"rows": rows})


@pytest.mark.timeout(0)
@pytest.mark.benchmark(group="gate")
def test_gate(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """Judge one run against another of the same noise, from the start of the process to its end."""
    for seed, name in enumerate(("base", "new")):
        write_model(tmp_path / f"{name}.json", _run(seed))
    command = [str(SCALEBENCH), "gate", "--baseline", "base.json", "new.json"]
    taken_s: list[float] = []

    def once() -> None:
        began = time.perf_counter()
        done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        taken_s.append(time.perf_counter() - began)
        assert done.returncode in (0, 1, 3) and "comparisons count for the verdict" in done.stdout

    once()  # byte code is compiled once, after installation
    taken_s.clear()
    benchmark.pedantic(once, rounds=ROUNDS)
    print_section(
        f"Gate on two runs of {NUM_ROWS} rows, {NUM_LAUNCHES} launches of {NUM_STEPS} steps each",
        f"median {against_limit(median(taken_s), TARGET_S)}  (n={len(taken_s)})",
    )
