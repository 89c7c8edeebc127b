"""Does being measured make a step slower? scalebench's loop against one with nothing around it."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.paired import judge, paired_difference
from benchmarks.probe_blocks import BlockPlan, arguments_for
from benchmarks.verdict import print_section

TARGET = 0.005
SECONDS = float(os.environ.get("SCALEBENCH_BENCH_PROBE_SECONDS", "50"))
BLOCK_STEPS = 10
REPOSITORY = Path(__file__).parents[1]


@pytest.mark.timeout(0)
@pytest.mark.benchmark(group="probe effect (the time is that of the whole comparison)")
@pytest.mark.parametrize("world_size", [1, 2])
def test_probe_effect(benchmark: BenchmarkFixture, tmp_path: Path, world_size: int) -> None:
    """Compare blocks of steps, in random order, with an A/A arm and a traced one."""
    plan = BlockPlan(str(tmp_path), world_size, SECONDS, BLOCK_STEPS, seed=world_size)
    records = benchmark.pedantic(run_ranks, args=(plan,), rounds=1)
    step_s = {name: slowest_rank(records, name) for name in records[0]["blocks"]}

    probe = paired_difference(step_s["scalebench"], step_s["hand"])
    same = paired_difference(step_s["again"], step_s["hand"])
    traced = paired_difference(step_s["traced"], step_s["untraced"])
    median_s = float(np.median(step_s["hand"]))
    bare_s = max(record["bare_loop_s"] for record in records)
    benchmark.extra_info.update(probe=vars(probe), same=vars(same), traced=vars(traced))
    lines = [
        f"hand-written loop            {1e3 * median_s:.2f} ms a step, blocks of {BLOCK_STEPS}",
        f"A/A, by hand against by hand {same}",
        f"A/B, scalebench against hand {probe}",
        f"  {judge(probe, same, TARGET)}",
        f"the loop around no model     {1e6 * bare_s:.1f} µs, {100 * bare_s / median_s:.3f} % of "
        "a step (leaves out what it does to caches)",
        f"torch.profiler against hand  {traced}; 7 to 15 % is usual",
    ]
    if world_size == 1:  # waiting for each other, ranks burn processor time that means nothing
        same_cpu = paired_difference(step_s["again cpu"], step_s["hand cpu"])
        probe_cpu = paired_difference(step_s["scalebench cpu"], step_s["hand cpu"])
        lines.append(f"A/A in processor time        {same_cpu}")
        lines.append(f"A/B in processor time        {probe_cpu}, work between blocks included")
    else:
        aligned = paired_difference(step_s["aligned"], step_s["hand"])
        lines.append(f"slowest rank step by step    {aligned}: a definition, no probe effect")
    print_section(f"Probe effect, {world_size} process(es), one thread each", *lines)


def run_ranks(plan: BlockPlan) -> list[dict[str, Any]]:
    """Run all ranks in processes of their own; return their records."""
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "KINETO_LOG_LEVEL": "5"}
    log = Path(plan.folder) / "log"
    with log.open("wb") as output:
        ranks = [
            subprocess.Popen(
                arguments_for(plan, rank),
                cwd=REPOSITORY,
                env=environment,
                stdout=output,
                stderr=output,
            )
            for rank in range(plan.world_size)
        ]
        codes = [rank.wait() for rank in ranks]
    assert not any(codes), f"exit codes {codes}: {log.read_text()[-2000:]}"
    return [json.loads(plan.record(rank).read_text()) for rank in range(plan.world_size)]


def slowest_rank(records: list[dict[str, Any]], arm: str) -> np.ndarray:
    """Return seconds per step of every block of an arm, of the rank that was slowest in it."""
    slowest: np.ndarray = np.max([record["blocks"][arm] for record in records], axis=0)
    return slowest
