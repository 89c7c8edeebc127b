"""What limits any measurement here: the clock's steps, two clocks, and the machine's own noise."""

import time
from collections.abc import Iterator

import numpy as np

from scalebench.analysis.timing.steps import launch_step_s
from scalebench.records.certificate import Line
from scalebench.session.selftest.bench import Bench
from scalebench.spec import StepPlan
from scalebench.spec.probes import ClockCheck
from scalebench.spec.virtual_hosts import VirtualHosts
from scalebench.stats import estimate_over_launches

NUM_READINGS = 20_000
SHORTEST_STEP_S = 1e-3
TIMER_LIMIT = 0.001

NUM_LAUNCHES = {"quick": 5, "full": 10}
SHORT = StepPlan(window_s=0.3, min_steps=10, max_warmup_steps=10, trace=False)
CHANGE_LIMIT = 0.02

CLOCK_AHEAD_S = (0.5, 5.0)
LINK = VirtualHosts(link_bit_per_s=(100_000_000,))


def timer(_: Bench) -> Iterator[Line]:
    """Yield the smallest time that the clock of the steps can tell."""
    readings = np.array([time.perf_counter_ns() for _ in range(NUM_READINGS)])
    ticks = np.diff(readings)
    found = float(np.median(ticks[ticks > 0])) / 1e9
    yield Line(
        name="timer resolution",
        unit="s",
        recovered=found,
        error_ratio=found / SHORTEST_STEP_S,
        limit=TIMER_LIMIT,
        limit_of="a step of 1 ms",
        detail=f"{NUM_READINGS} readings in a row",
    )


def same_again(bench: Bench) -> Iterator[Line]:
    """Yield the smallest change between two runs that this machine can tell from noise.

    The same training twice, by turns; what differs between the two is noise.
    """
    count = NUM_LAUNCHES[bench.form]
    steps: tuple[list[float], list[float]] = ([], [])
    for _ in range(count):
        for side in steps:
            side.append(launch_step_s(bench.step_s(2, None, SHORT)))
    ratio = estimate_over_launches([b / a for a, b in zip(*steps, strict=True)])
    assert ratio.half_width is not None, "several launches give an interval"
    detectable = bench.detectable = ratio.half_width
    line = Line(
        name="smallest change told from noise",
        recovered=detectable,
        error_ratio=detectable,
        limit=CHANGE_LIMIT,
        limit_of="step",
        detail=f"{count} launches against {count} of the same: {(ratio.value - 1) * 100:+.2f} %",
    )
    if detectable > CHANGE_LIMIT:
        noisy = f"this machine's noise hides changes below {detectable * 100:.1f} %"
        line = line.model_copy(update={"error_ratio": None, "reason": noisy})
    yield line


def clocks(bench: Bench) -> Iterator[Line]:
    """Yield the offset that is found of a clock that was put ahead, across two hosts.

    The limit is the bound that comes with it: the true offset may not lie beyond.
    """
    ahead_s = bench.random.uniform(*CLOCK_AHEAD_S)
    plan = ClockCheck(world_size=2, device="cpu", backend="gloo", threads=1, virtual_hosts=LINK)
    fault = bench.inject("false_clock", rank=1, seconds=ahead_s)
    alignment = bench.probe(plan, fault)[1].clock
    assert alignment is not None, "every rank compares its clock"
    found, bound = alignment.offset_ns / 1e9, alignment.bound_ns / 1e9
    yield Line(
        name="clock offset across hosts",
        unit="s",
        injected=ahead_s,
        recovered=found,
        error_ratio=(found - ahead_s) / ahead_s,
        limit=bound / ahead_s,
        detail=f"known within ±{bound * 1e6:.0f} µs",
    )
