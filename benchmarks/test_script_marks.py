"""What scalebench's marks cost a step of a user's own script: blocks with and without, in turns."""

import os
from pathlib import Path

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.paired import judge, paired_difference
from benchmarks.probe_blocks import BlockPlan
from benchmarks.test_probe_effect import BLOCK_STEPS, TARGET, run_ranks, slowest_rank
from benchmarks.verdict import print_section
from scalebench.spec import StepPlan

SECONDS = float(os.environ.get("SCALEBENCH_BENCH_PROBE_SECONDS", "50"))


@pytest.mark.timeout(0)
@pytest.mark.benchmark(group="marks in a script (the time is that of the whole comparison)")
@pytest.mark.parametrize("world_size", [1, 2])
def test_script_marks(benchmark: BenchmarkFixture, tmp_path: Path, world_size: int) -> None:
    """Compare blocks of steps, in random order, with an A/A arm."""
    plan = BlockPlan(str(tmp_path), world_size, SECONDS, BLOCK_STEPS, seed=world_size)
    program = "benchmarks.script_blocks"
    records = benchmark.pedantic(run_ranks, args=(plan, program), rounds=1)
    step_s = {name: slowest_rank(records, name) for name in records[0]["blocks"]}
    marks = paired_difference(step_s["marks"], step_s["hand"])
    same = paired_difference(step_s["again"], step_s["hand"])
    checks = paired_difference(step_s["marks"], step_s["unchecked"])
    benchmark.extra_info.update(marks=vars(marks), same=vars(same), checks=vars(checks))
    launch_s = StepPlan().window_s + StepPlan().rounds_s
    median_s = float(np.median(step_s["hand"]))
    bare_s = max(record["around_nothing_s"] for record in records)
    lines = [
        f"the script by itself    {1e3 * median_s:.2f} ms a step",
        f"A/A, itself twice       {same}",
        f"A/B, with marks         {marks}",
        f"  {judge(marks, same, TARGET)}",
        f"with and without checks {checks}",
        f"  {judge(checks, same, TARGET)}",
        *(
            f"checks of a launch      {1e3 * took_s:.1f} ms with {num / 1e6:.1f} M parameters, "
            f"{1e3 * cpu_s:.1f} ms of the processor, {100 * cpu_s / launch_s:.2f} % of "
            f"{launch_s:g} s, outside of the steps that count"
            for num, took_s, cpu_s in records[0]["checks"]
        ),
        f"marks around no model   {1e6 * bare_s:.1f} µs, {100 * bare_s / median_s:.3f} % of a step "
        "(leaves out what they do to caches)",
    ]
    if world_size == 1:
        lines += [
            f"A/A in processor time   {paired_difference(step_s['again cpu'], step_s['hand cpu'])}",
            f"A/B in processor time   {paired_difference(step_s['marks cpu'], step_s['hand cpu'])}",
        ]
    print_section(f"Marks in a script, {world_size} process(es), one thread each", *lines)
