"""Is what was injected found? Losses of known cause, links of known rate, known bubbles."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from scalebench.analysis.attribution import LaunchAttribution
from scalebench.analysis.budget import loss_budget, waits_most
from scalebench.analysis.steps import clean_steps, launch_step_s, paired_over_bare, steps_of
from scalebench.costmodel.pipeline_schedule import bubble_law
from scalebench.records.certificate import Form, Line
from scalebench.records.measured.probes import TimedTransfer
from scalebench.records.rows.budget import Budget
from scalebench.session.selftest.bench import Bench, written_down
from scalebench.spec import Pipeline, ScheduleName, StepPlan
from scalebench.spec.base import CollectiveName
from scalebench.spec.presets import PacedShape
from scalebench.spec.probes import SAMPLE_S, Sweep, Transfer
from scalebench.spec.world import BOTH_WAYS_SHARE, PAYLOAD_SHARE, VirtualHosts, rate_text
from scalebench.stats import median_with_noise
from scalebench.trace.operations.matching import stragglers

NUM_RATES = 3
MBIT = 1_000_000
RATES_MBIT = (50, 150)
SLOW_MBIT, FAST_MBIT = (20, 60), 150
LARGE_S, SMALLER = 0.06, 4
"""The larger of two messages takes a link 60 ms, the smaller a quarter of it."""

LIMIT = 0.02
NUM_HOSTS = 3
BUBBLE_LIMIT = 0.03
FORWARD_S: dict[Form, float] = {"quick": 0.008, "full": 0.02}
"""Of one microbatch in one stage; a backward pass takes twice as long."""
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


def rates(bench: Bench) -> Iterator[Line]:
    """Yield, for each of three random rates, the rate that transfers and all-reduces tell."""
    for _ in range(NUM_RATES):
        rate = bench.random.randint(*RATES_MBIT) * MBIT
        hosts = VirtualHosts(link_bit_per_s=(rate,))
        names: tuple[CollectiveName, ...] = ("send_recv", "all_reduce")
        transfers = [t for name in names for t in _two_sizes(name, rate)]
        found = _sweep(bench, hosts, 2, transfers)
        for name, share, pair in (
            ("send to recv", PAYLOAD_SHARE, found[:2]),
            ("all-reduce", BOTH_WAYS_SHARE, found[2:]),
        ):
            yield rate_line(f"link rate, {name}", rate * share, pair, f"{rate_text(rate)}, 2 hosts")


def slower_host(bench: Bench) -> Iterator[Line]:
    """Yield the host that is behind a slower link, and the rate of that."""
    slow = bench.random.randrange(NUM_HOSTS)
    rate = bench.random.randint(*SLOW_MBIT) * MBIT
    links = tuple(rate if host == slow else FAST_MBIT * MBIT for host in range(NUM_HOSTS))
    pairs = list(combinations(range(NUM_HOSTS), 2))
    transfers = [t for pair in pairs for t in _two_sizes("send_recv", rate, pair)]
    found = _sweep(bench, VirtualHosts(link_bit_per_s=links), NUM_HOSTS, transfers)
    by_pair = dict(zip(pairs, zip(found[::2], found[1::2], strict=True), strict=True))
    named = slowest_host({pair: measured_rate(*two)[0] for pair, two in by_pair.items()})
    behind = [two for pair, two in by_pair.items() if named in pair]
    told = f"host {named} of {NUM_HOSTS}, {rate_text(rate)}"
    line = rate_line("slower link to one host", rate * PAYLOAD_SHARE, behind[0], told)
    if named != slow:
        wrong = f"host {named} was named, and host {slow} has the slower link"
        line = line.model_copy(update={"passed": False, "reason": wrong})
    yield line


def slowest_host(rate_of_pair: dict[tuple[int, int], float]) -> int:
    """Return the host whose fastest connection is slowest: all of its own are slow."""
    hosts = sorted({host for pair in rate_of_pair for host in pair})
    best = {h: max(r for pair, r in rate_of_pair.items() if h in pair) for h in hosts}
    return min(hosts, key=best.__getitem__)


def rate_line(name: str, injected: float, pair: Sequence[TimedTransfer], detail: str) -> Line:
    """Return the line of one rate, bits of payload per second.

    ``injected`` is the rate that was set; ``pair``: the same operation at a smaller and a larger
    size.
    """
    found, noise_ratio = measured_rate(*pair)
    return Line(
        name=name,
        unit="bit/s",
        injected=injected,
        recovered=found,
        error_ratio=found / injected - 1,
        noise_ratio=noise_ratio,
        limit=LIMIT,
        detail=f"{detail}, {len(pair[0].time_s)} repeats",
    )


def measured_rate(smaller: TimedTransfer, larger: TimedTransfer) -> tuple[float, float]:
    """Return the rate that two sizes tell, bits per second, and its noise as a ratio.

    From what the larger takes longer: what every operation costs, and what a link lets through at
    once after a pause, is the same in both.
    """
    bits = (larger.size_bytes - smaller.size_bytes) * 8
    longer_s = np.subtract(larger.time_s, smaller.time_s)
    found_s, noise_s = median_with_noise(longer_s.tolist())
    found_s = max(found_s, np.finfo(float).tiny)
    return bits / found_s, noise_s / found_s


def _two_sizes(
    name: CollectiveName, bit_per_s: int, peers: tuple[int, int] = (0, 1)
) -> list[Transfer]:
    large = round(bit_per_s / 8 * LARGE_S)
    return [
        Transfer(operation=name, size_bytes=size, peers=peers) for size in (large // SMALLER, large)
    ]


def _sweep(
    bench: Bench, hosts: VirtualHosts, num_ranks: int, transfers: Sequence[Transfer]
) -> tuple[TimedTransfer, ...]:
    plan = Sweep(
        world_size=num_ranks,
        device="cpu",
        backend="gloo",
        threads=1,
        virtual_hosts=hosts,
        transfers=tuple(transfers),
        repeats=bench.effort.repeats,
    )
    return bench.probe(plan)[0].sweep


@dataclass(frozen=True)
class Setup:
    """Pipelines that make one line: the one that is farthest from the law counts."""

    schedule: ScheduleName
    num_ranks: int
    microbatches: tuple[int, ...]


SETUPS: dict[Form, tuple[Setup, ...]] = {
    "quick": (Setup("1f1b", 2, (4,)),),
    "full": (
        Setup("gpipe", 2, (2, 4, 8, 16)),
        Setup("1f1b", 2, (2, 4, 8, 16)),
        Setup("gpipe", 4, (4, 8, 16)),
        Setup("1f1b", 4, (4, 8, 16)),
    ),
}
PLANS: dict[Form, StepPlan] = {
    "quick": StepPlan(steps=4, rounds_s=0.1, max_warmup_steps=4),
    "full": StepPlan(steps=4, rounds_s=3.0, max_warmup_steps=4),
}


@dataclass(frozen=True)
class ShownBubble:
    """What one launch shows of its bubble; ratios of the step.

    Attributes:
        waited: Time in which ranks waited for one another's results, median over traced steps.
        noise: By how much that may be off.
        dry_run: Idle time of the dry run with the measured stage times.
        overhead_s: What an action costs beyond its stage's time, from the clean steps.
    """

    microbatches: int
    law: float
    waited: float
    noise: float
    dry_run: float
    overhead_s: float

    @property
    def error(self) -> float:
        """The worse of the two from the law."""
        return max(self.waited - self.law, self.dry_run - self.law, key=abs)


def bubbles(bench: Bench) -> Iterator[Line]:
    """Yield how far the bubble that is found is from ``(p - 1) / (m + p - 1)``."""
    for setup in SETUPS[bench.form]:
        found = [_bubble(bench, setup, m) for m in setup.microbatches]
        worst = max(found, key=lambda one: abs(one.error))
        yield Line(
            name=f"pipeline bubble, {setup.schedule}, {setup.num_ranks} ranks",
            injected=worst.law,
            recovered=worst.law + worst.error,
            error_ratio=worst.error,
            noise_ratio=worst.noise,
            limit=BUBBLE_LIMIT,
            limit_of="step",
            detail=(
                f"{worst.microbatches} microbatches; ranks waited {worst.waited * 100:.1f} %, "
                f"dry run {worst.dry_run * 100:.1f} %, "
                f"{worst.overhead_s * 1e3:.2f} ms overhead per action"
            ),
        )


def _bubble(bench: Bench, setup: Setup, microbatches: int) -> ShownBubble:
    p = setup.num_ranks
    workload = PacedShape(
        name="paced",
        stages=p,
        stage_parameters=64,
        sample_s=3 * FORWARD_S[bench.form] * p,
        batch_size=microbatches,
    )
    strategy = Pipeline(schedule=setup.schedule, microbatches=microbatches)
    launch = bench.train_with(strategy, workload, p, PLANS[bench.form])
    return found_in(launch, p, microbatches)


def found_in(launch: LaunchAttribution, p: int, m: int) -> ShownBubble:
    """Return what a launch of equal stages shows of its bubble."""
    (pipeline,) = launch.pipelines
    law = bubble_law(pipeline.strategy.schedule, p, m, 1)
    waited, noise = median_with_noise(pipeline.waiting_ratios)
    assert law is not None and pipeline.timeline is not None, "every launch here is whole"
    work_s = np.mean([pipeline.seconds["F", s] + pipeline.seconds["B", s] for s in range(p)])
    per_microbatch_s = launch_step_s(launch.result) / (m + p - 1)
    return ShownBubble(
        microbatches=m,
        law=law,
        waited=waited,
        noise=noise,
        dry_run=pipeline.timeline.bubble_ratio,
        overhead_s=max(per_microbatch_s - float(work_s), 0.0) / 2,
    )


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
