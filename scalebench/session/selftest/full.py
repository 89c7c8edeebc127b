"""What takes minutes: exposure at known overlaps, and the speedup five times over."""

from collections.abc import Iterator

import numpy as np

from scalebench.analysis.timing.steps import launch_step_s, steps_of
from scalebench.records.certificate import Line
from scalebench.session.selftest.bench import Bench
from scalebench.spec import StepPlan
from scalebench.spec.virtual_hosts import BOTH_WAYS_SHARE, VirtualHosts
from scalebench.stats import median_with_noise

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
