"""Time that is lost to a known cause: is it found, under its right name, at its right place?"""

from collections.abc import Iterator

import numpy as np

from scalebench.analysis.attribution import LaunchAttribution
from scalebench.analysis.budget import loss_budget, waits_most
from scalebench.analysis.timing.steps import clean_steps, launch_step_s, paired_over_bare, steps_of
from scalebench.records.certificate import Line
from scalebench.records.rows.budget import Budget
from scalebench.session.selftest.bench import Bench, written_down
from scalebench.spec.probes import SAMPLE_S
from scalebench.stats import median_with_noise
from scalebench.trace.operations.matching import stragglers

NUM_RANKS = 2
DELAY_S = (0.025, 0.045)
BUCKET_DELAY_S = (0.03, 0.05)
FACTOR = (1.4, 1.8)

STRAGGLER_LIMIT = 0.05
BUCKET_LIMIT = 0.05
BATCHES_LIMIT = 0.05
SLOWDOWN_LIMIT = 0.03
RESIDUAL_LIMIT = 0.02
PROBE_LIMIT = 0.005


def losses(bench: Bench) -> Iterator[Line]:
    """Yield one line for each cause of lost time, and those on the budget and the probe."""
    baseline = bench.train("paced", num_ranks=1)
    budgets = []
    yield straggler(bench)
    for line, budget in (slowdown(bench, baseline), late_batches(bench, baseline)):
        budgets.append(budget)
        yield line
    yield slow_bucket(bench)
    yield residual(budgets)
    yield probe_effect(bench.trained)


def straggler(bench: Bench) -> Line:
    """Return whether the rank that comes late is named, and how late it comes."""
    late = bench.random.randrange(NUM_RANKS)
    fault = bench.inject("late_rank", rank=late, seconds=bench.random.uniform(*DELAY_S))
    launch = bench.train("late_rank", fault=fault)
    named = stragglers(launch.matched.arrivals)[0]
    lateness = first_lateness(launch, named.rank)
    found, noise = median_with_noise(lateness)
    injected = float(np.median(written_down(fault, late)))
    line = Line(
        name="straggler",
        unit="s",
        injected=injected,
        recovered=found,
        error_ratio=found / injected - 1,
        noise_ratio=noise / injected,
        limit=STRAGGLER_LIMIT,
        detail=f"rank {named.rank} of {NUM_RANKS}, {len(lateness)} traced steps",
    )
    if named.rank != late:
        wrong = f"rank {named.rank} was named, and rank {late} was late"
        line = line.model_copy(update={"passed": False, "reason": wrong})
    return line


def first_lateness(launch: LaunchAttribution, rank: int) -> list[float]:
    """Return how late a rank came to the first operation of each step it was last at, seconds."""
    first: dict[int, float] = {}
    for arrival in launch.matched.arrivals:
        if arrival.rank == rank:
            first.setdefault(arrival.step, arrival.late_s)
    return list(first.values())


def slowdown(bench: Bench, baseline: LaunchAttribution) -> tuple[Line, Budget]:
    """Return by what factor the computation of all ranks is found to be slower."""
    factor = bench.random.uniform(*FACTOR)
    launch = bench.train("slow_compute", fault=bench.inject("slow_compute", factor=factor))
    budget = budget_of(launch, baseline)
    found = 1 + budget.compute_inflation_s / SAMPLE_S
    line = Line(
        name="slower computation",
        injected=factor,
        recovered=found,
        error_ratio=found / factor - 1,
        noise_ratio=noise_s(launch, baseline) / (factor * SAMPLE_S),
        limit=SLOWDOWN_LIMIT,
        detail=f"on all {NUM_RANKS} ranks",
    )
    return line, budget


def late_batches(bench: Bench, baseline: LaunchAttribution) -> tuple[Line, Budget]:
    """Return by how much batches are found to be late."""
    fault = bench.inject("late_batches", seconds=bench.random.uniform(*DELAY_S))
    launch = bench.train("late_batches", fault=fault)
    budget = budget_of(launch, baseline)
    found = budget.data_stall_s
    injected = float(np.median(written_down(fault, budget.rank)))
    line = Line(
        name="slow data loader",
        unit="s",
        injected=injected,
        recovered=found,
        error_ratio=found / injected - 1,
        noise_ratio=noise_s(launch, baseline) / injected,
        limit=BATCHES_LIMIT,
        detail=f"on all {NUM_RANKS} ranks",
    )
    return line, budget


def slow_bucket(bench: Bench) -> Line:
    """Return how long the bucket is found to be in flight that one rank hands over late."""
    late = bench.random.randrange(NUM_RANKS)
    fault = bench.inject("late_bucket", rank=late, seconds=bench.random.uniform(*BUCKET_DELAY_S))
    launch = bench.train("late_bucket", fault=fault)
    punctual = next(rank for rank in range(NUM_RANKS) if rank != late)
    trace = launch.traces[punctual]
    found, injected = [], []
    handed_over = {rank: written_down(fault, rank) for rank in (late, punctual)}
    for step, (begin, end) in enumerate(trace.steps):
        lasted = [op.end_ns - op.start_ns for op in trace.operations if op.step == step]
        seen_s = handed_over[punctual]
        begin_s, end_s = ((trace.origin_ns + at) / 1e9 for at in (begin, end))
        (now,) = np.flatnonzero((seen_s >= begin_s) & (seen_s < end_s))
        found.append(max(lasted) / 1e9)
        injected.append(handed_over[late][now] - seen_s[now])
    injected_s = float(np.median(injected))
    _, noise = median_with_noise((np.array(found) - injected).tolist())
    recovered = float(np.median(found))
    return Line(
        name="slow bucket",
        unit="s",
        injected=injected_s,
        recovered=recovered,
        error_ratio=recovered / injected_s - 1,
        noise_ratio=noise / injected_s,
        limit=BUCKET_LIMIT,
        detail=f"rank {late} of {NUM_RANKS}, {len(found)} traced steps",
    )


def residual(budgets: list[Budget]) -> Line:
    """Return the largest part of a step that a budget leaves unexplained."""
    shares = [budget.residual_s / budget.measured_s for budget in budgets]
    worst = max(shares, key=abs)
    return Line(
        name="budget residual",
        injected=0.0,
        recovered=worst,
        error_ratio=worst,
        limit=RESIDUAL_LIMIT,
        limit_of="step",
        detail=f"the largest of {len(budgets)} budgets",
    )


def probe_effect(trained: list[LaunchAttribution]) -> Line:
    """Return by how much longer a step takes because it is measured."""
    ratios = [ratio - 1 for launch in trained for ratio in paired_over_bare(launch.result.ranks)]
    found, noise = median_with_noise(ratios)
    return Line(
        name="probe effect",
        injected=0.0,
        recovered=found,
        error_ratio=found,
        noise_ratio=noise,
        limit=PROBE_LIMIT,
        limit_of="step",
        detail=f"{len(ratios)} pairs of blocks",
    )


def budget_of(launch: LaunchAttribution, baseline: LaunchAttribution) -> Budget:
    """Return the loss budget of a launch, as a row of a run gets it."""
    steps = (launch_step_s(launch.result), launch_step_s(baseline.result))
    rank = waits_most([launch])
    return loss_budget([(launch, baseline)], rank, steps, 1.0, launch.not_apart)


def noise_s(*launches: LaunchAttribution) -> float:
    """Return how uncertain the typical steps of launches are together, seconds (95 %)."""
    parts = [
        median_with_noise(steps)[1]
        for launch in launches
        for steps in (
            clean_steps(launch.result),
            steps_of(launch.result.ranks, "paired").tolist(),
            steps_of(launch.result.ranks, "traced").tolist(),
        )
    ]
    return float(np.sqrt(np.sum(np.square(parts))))
