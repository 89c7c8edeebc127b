"""Launch overhead: from the decision to the first training step, beside ``torchrun``."""

import os
from pathlib import Path
from statistics import median

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks import torchrun
from benchmarks.verdict import against_floor, against_limit, print_section
from scalebench import machine
from scalebench.launch.local import LocalLauncher
from scalebench.session.plan import Machine, Request, make_plan
from scalebench.spec import Case, Cell, Ddp, StepPlan, Suite

TARGET_S = 1.0
TORCHRUN_EXPECTED_S = 5.0
NUM_STEPS = 2
ROUNDS = int(os.environ.get("SCALEBENCH_BENCH_LAUNCH_ROUNDS", "7"))


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


class LaunchClock:
    """Time that passes only between a decision and the first step that followed it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """Return the seconds so far."""
        return self.now_s


CLOCK = LaunchClock()


@pytest.mark.timeout(0)
@pytest.mark.benchmark(group="launch of 2 ranks", timer=CLOCK)
def test_launch_of_two_ranks(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """Launch one further cell of two ranks; before each launch, the same through torchrun."""
    cell = planned_cell()
    ours_s: list[float] = []
    theirs_s: list[float] = []

    with LocalLauncher() as launcher:

        def launch() -> None:
            launched = launcher.launch(cell, tmp_path)
            assert launched.failure is None, launched.failure
            assert launched.launch_s is not None
            ours_s.append(launched.launch_s)
            CLOCK.now_s += launched.launch_s

        def launch_with_torchrun() -> None:
            theirs_s.append(torchrun.launch_s(cell, 2 * NUM_STEPS))

        launcher.launch(cell, tmp_path)  # "one further": the process that forks is there
        benchmark.pedantic(launch, setup=launch_with_torchrun, rounds=ROUNDS)

    ours, theirs = median(ours_s), median(theirs_s)
    benchmark.extra_info.update(torchrun_s=theirs_s, ratio=theirs / ours)
    print_section(
        f"Launch of 2 ranks, decision to first step, medians of {len(ours_s)}, interleaved",
        f"scalebench  {against_limit(ours, TARGET_S)}  (slowest {max(ours_s):.2f} s)",
        f"torchrun    {against_floor(theirs, TORCHRUN_EXPECTED_S)}",
        f"torchrun takes {theirs / ours:.1f} times as long",
    )
