"""What commands cost as a user gives them: help, the gate on fifty rows, a search of 1,024 GPUs.

Fresh processes from their start to their end. The search's memory limits refuse little and more.
"""

import json
import math
import os
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

HELP_S, GATE_S, SEARCH_S, SEARCH_MB = 0.2, 1.5, 10.0, 500.0
ROUNDS, GATE_ROUNDS = 21, 11
NUM_ROWS, NUM_LAUNCHES, NUM_STEPS = 50, 5, 100
GALLERY = Path(__file__).parents[1] / "reports" / "gallery" / "ddp-2-cores" / "summary.json"
SCALEBENCH = str(Path(sys.executable).with_name("scalebench"))
SEARCHES = {
    "gpt-7b, 80 GB": "--workload gpt-7b --batch-size 1024 --gpu-type h100",
    "gpt-7b, 40 GB": "--workload gpt-7b --batch-size 1024 --gpu-type a100 --memory-limit 40GB",
    "gpt-moe-8x124m": "--workload gpt-moe-8x124m --batch-size 4096 --gpu-type h100",
}

pytestmark = pytest.mark.timeout(0)


@pytest.mark.benchmark(group="start")
def test_help(benchmark: BenchmarkFixture) -> None:
    """Start fresh processes; byte code is compiled once, after installation."""
    command = [SCALEBENCH, "--help"]
    benchmark.pedantic(
        lambda: subprocess.run(command, stdout=subprocess.DEVNULL, check=True),
        rounds=ROUNDS,
        warmup_rounds=1,
    )
    taken_s = benchmark.stats.stats.median
    print_section("Help, a fresh process", f"median {against_limit(taken_s, HELP_S)}")


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


@pytest.mark.benchmark(group="gate")
def test_gate(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """Judge one run against another of the same noise."""
    for seed, name in enumerate(("base", "new")):
        write_model(tmp_path / f"{name}.json", _run(seed))
    command = [SCALEBENCH, "gate", "--baseline", "base.json", "new.json"]
    taken_s: list[float] = []

    def once() -> None:
        began = time.perf_counter()
        done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        taken_s.append(time.perf_counter() - began)
        assert done.returncode in (0, 1, 3) and "comparisons count for the verdict" in done.stdout

    once()
    taken_s.clear()
    benchmark.pedantic(once, rounds=GATE_ROUNDS)
    print_section(
        f"Gate on two runs of {NUM_ROWS} rows, {NUM_LAUNCHES} launches of {NUM_STEPS} steps each",
        f"median {against_limit(median(taken_s), GATE_S)}  (n={len(taken_s)})",
    )


@pytest.mark.benchmark(group="search")
@pytest.mark.parametrize("name", SEARCHES)
def test_search(benchmark: BenchmarkFixture, name: str) -> None:
    """Search 1,024 GPUs once; print time and largest resident size."""
    asked = f"search --gpus 1024 {SEARCHES[name]} --mfu 0.45 --margin 10% --json".split()
    peaks_mb: list[float] = []

    def once() -> dict[str, float]:
        process = subprocess.Popen([SCALEBENCH, *asked], stdout=subprocess.PIPE)
        assert process.stdout is not None
        found: dict[str, float] = json.load(process.stdout)
        process.stdout.close()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        peaks_mb.append(used.ru_maxrss * 1024 / 1e6)
        return found

    found = benchmark.pedantic(once, rounds=1)
    print_section(
        f"Search of {found['num_candidates']:,} configurations, {name}",
        f"command {against_limit(benchmark.stats.stats.median, SEARCH_S)}",
        f"memory  {against_limit(peaks_mb[-1], SEARCH_MB, 'MB')}",
    )
