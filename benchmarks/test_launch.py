"""Launch overhead: from the decision to the first training step."""

from pathlib import Path
from statistics import median

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.verdict import against_limit, print_section
from scalebench import machine
from scalebench.launch.local import LocalLauncher
from scalebench.session.plan import Machine, Request, make_plan
from scalebench.spec import Case, Cell, Ddp, StepPlan, Suite

TARGET_S = 1.0
NUM_STEPS = 2
ROUNDS = 7


def planned_cell() -> Cell:
    """Return one measuring cell of two ranks on CPU, planned by scalebench."""
    suite = Suite(
        name="bench",
        question="What does a launch cost?",
        cases=(Case(name="case", strategy=Ddp()),),
        workload="gpt-tiny",
        batch_size=16,
        steps=StepPlan(steps=NUM_STEPS, max_warmup_steps=NUM_STEPS),
        repeats=1,
    )
    here = Machine(num_gpus=0, num_cores=machine.num_cores())
    plan = make_plan(Request(world_sizes=(2,), device="cpu"), [suite], here)
    return next(c for c in plan.cells if c.purpose == "measure" and c.world_size == 2)


@pytest.mark.timeout(0)
@pytest.mark.benchmark(group="launch of 2 ranks, to its end")
def test_launch_of_two_ranks(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """Launch further cells of two ranks."""
    cell = planned_cell()
    launches_s: list[float] = []

    with LocalLauncher() as launcher:

        def launch() -> None:
            launched = launcher.launch(cell, tmp_path)
            assert launched.failure is None, launched.failure
            assert launched.launch_s is not None
            launches_s.append(launched.launch_s)

        launcher.launch(cell, tmp_path)  # "further": the process that forks is there
        benchmark.pedantic(launch, rounds=ROUNDS)

    benchmark.extra_info.update(launches_s=launches_s)
    print_section(
        f"Launch of 2 ranks, decision to first step, median of {len(launches_s)}",
        f"{against_limit(median(launches_s), TARGET_S)}  (slowest {max(launches_s):.2f} s)",
    )
