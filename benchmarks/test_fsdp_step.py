"""Does the FSDP suite's step do anything that an FSDP2 loop written by hand does not?"""

import os
from pathlib import Path

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.paired import judge, paired_difference
from benchmarks.probe_blocks import BlockPlan
from benchmarks.test_probe_effect import BLOCK_STEPS, run_ranks, slowest_rank
from benchmarks.verdict import print_section

TARGET = 0.005
SECONDS = float(os.environ.get("SCALEBENCH_BENCH_PROBE_SECONDS", "50"))


@pytest.mark.timeout(0)
@pytest.mark.benchmark(group="FSDP step (the time is that of the whole comparison)")
@pytest.mark.parametrize("world_size", [1, 2])
def test_fsdp_step(benchmark: BenchmarkFixture, tmp_path: Path, world_size: int) -> None:
    """Compare blocks of steps of one model, and one sharded by hand, in random order."""
    plan = BlockPlan(str(tmp_path), world_size, SECONDS, BLOCK_STEPS, seed=world_size)
    records = benchmark.pedantic(run_ranks, args=(plan, "benchmarks.fsdp_blocks"), rounds=1)
    step_s = {name: slowest_rank(records, name) for name in records[0]["blocks"]}
    by_hand = np.sqrt(step_s["hand"] * step_s["again"])  # both do the same: less noise
    ratio = paired_difference(step_s["scalebench"], by_hand)
    same = paired_difference(step_s["again"], step_s["hand"])
    own = paired_difference(step_s["scalebench"], step_s["own"])
    calls = records[0]["calls"]
    benchmark.extra_info.update(calls=calls, ratio=vars(ratio), same=vars(same), own=vars(own))
    lines = [
        f"by hand                      {1e3 * float(np.median(step_s['hand'])):.2f} ms a step",
        f"A/A, by hand against by hand {same}",
        f"A/B, scalebench against hand {ratio}",
        f"  {judge(ratio, same, TARGET)}",
        f"against a model of its own   {own}: otherwise in every process",
        f"functions called in a step   {calls['scalebench']} against {calls['own']} by hand: "
        f"{100 * (calls['scalebench'] / calls['own'] - 1):+.2f} %",
    ]
    if world_size == 1:  # waiting for each other, ranks burn processor time that means nothing
        same_cpu = paired_difference(step_s["again cpu"], step_s["hand cpu"])
        by_hand_cpu = np.sqrt(step_s["hand cpu"] * step_s["again cpu"])
        ratio_cpu = paired_difference(step_s["scalebench cpu"], by_hand_cpu)
        lines.append(f"A/A in processor time        {same_cpu}")
        lines.append(f"A/B in processor time        {ratio_cpu}, work between blocks included")
    print_section(f"FSDP step, {world_size} process(es), one thread each", *lines)
