"""What limits any measurement here: clocks and noise; and what takes minutes: overlap, speedup."""

import time
from collections.abc import Iterator

import numpy as np

from scalebench.analysis.timing.steps import launch_step_s, steps_of
from scalebench.records.certificate import Line
from scalebench.session.selftest.bench import Bench
from scalebench.spec import StepPlan
from scalebench.spec.probes import ClockCheck
from scalebench.spec.virtual_hosts import BOTH_WAYS_SHARE, VirtualHosts
from scalebench.stats import estimate_over_launches, median_with_noise

OVERLAPS = (0.0, 0.5, 1.0)
TRANSFER_S = 0.3
MORE_THAN_HIDDEN = 1.3
"""At full overlap the backward pass that is left lasts longer than the transfer by this."""

RATES_MBIT = (60, 120)
EXPOSED_LIMIT = 0.03

NUM_TIMES = 5
LAUNCHES = 3
"""Of each size for one speedup: as many as a run has where nothing else is asked for."""

SPEEDUP_LIMIT = 0.02
SPEEDUP_SAMPLES = 4
"""Per rank and step, of 20 ms each. A step costs some tenths of a millisecond to schedule, and that
varies: of a step of 20 ms it would be more than the limit."""

SPEEDUP_LINK = VirtualHosts(link_bit_per_s=(25_000_000,))
SPEEDUP_PLAN = StepPlan(window_s=4.0, max_warmup_steps=12, trace=False)


def exposure(bench: Bench) -> Iterator[Line]:
    """Yield how much of a transfer of known length is found exposed, at three overlaps."""
    for overlap in OVERLAPS:
        rate = bench.random.randint(*RATES_MBIT) * 1_000_000
        num_bytes = round(rate * BOTH_WAYS_SHARE / 8 * TRANSFER_S) // 4 * 4
        behind_s = TRANSFER_S * overlap * (MORE_THAN_HIDDEN if overlap == 1 else 1)
        fault = bench.inject("transfer_behind_compute", count=num_bytes, seconds=behind_s)
        launch = bench.train(
            "transfer_behind_compute",
            fault=fault,
            hosts=VirtualHosts(link_bit_per_s=(rate,)),
            plan=StepPlan(window_s=5.0, rounds_s=30.0, max_warmup_steps=6),
        )
        injected = TRANSFER_S * max(0.0, 1 - overlap)
        found = float(np.mean([b.exposed_comm_s for b in launch.breakdowns.values()]))
        step_s, noise = median_with_noise(steps_of(launch.result.ranks, "traced").tolist())
        yield Line(
            name=f"exposed transfer, overlap {overlap * 100:.0f} %",
            unit="s",
            injected=injected,
            recovered=found,
            error_ratio=(found - injected) / step_s,
            noise_ratio=noise / step_s,
            limit=EXPOSED_LIMIT,
            limit_of="step",
            detail=f"{num_bytes / 1e6:.1f} MB at {rate / 1e6:.0f} Mbit/s",
        )


def speedup_again(bench: Bench) -> Iterator[Line]:
    """Yield by how much the speedup at two hosts varies when it is measured five times.

    Each time as a run measures it: from several launches of either size, by turns.
    """
    found = []
    for _ in range(NUM_TIMES):
        steps_s = [
            [
                launch_step_s(bench.step_s(num_ranks, SPEEDUP_LINK, SPEEDUP_PLAN, SPEEDUP_SAMPLES))
                for num_ranks in (1, 2)
            ]
            for _ in range(LAUNCHES)
        ]
        alone, both = np.mean(steps_s, axis=0)
        found.append(2 * float(alone / both))
    center = float(np.median(found))
    worst = max((one / center - 1 for one in found), key=abs)
    yield Line(
        name="speedup repeated",
        recovered=worst,
        error_ratio=worst,
        noise_ratio=bench.detectable,
        limit=SPEEDUP_LIMIT,
        limit_of="speedup",
        detail=f"the farthest of {NUM_TIMES} from {center:.3f}",
    )


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
