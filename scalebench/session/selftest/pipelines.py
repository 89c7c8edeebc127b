"""Pipelines of stages of known duration: is the bubble found that their schedule has by the law?"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from scalebench.analysis.attribution import LaunchAttribution
from scalebench.analysis.timing.steps import launch_step_s
from scalebench.costmodel.pipelines.orders import bubble_law
from scalebench.records.certificate import Form, Line
from scalebench.session.selftest.bench import Bench
from scalebench.spec import Pipeline, ScheduleName, StepPlan
from scalebench.spec.presets import PacedShape
from scalebench.stats import median_with_noise

BUBBLE_LIMIT = 0.03
FORWARD_S: dict[Form, float] = {"quick": 0.008, "full": 0.02}
"""Of one microbatch in one stage; a backward pass takes twice as long."""


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
