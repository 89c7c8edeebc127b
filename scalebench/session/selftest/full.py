"""The parts of the self-test that take longer: collectives' results, clocks, overlap, speedup.

Collectives' results: all of them right, and a wrong one is noticed.

Certificates as files: kept with the user's other caches, found by machine.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from scalebench.analysis.steps import launch_step_s, steps_of
from scalebench.machine import identity
from scalebench.records.certificate import FORMAT, Certificate, Line
from scalebench.records.files import write_model
from scalebench.records.measured.probes import TimedTransfer
from scalebench.records.paths import certificates_folder
from scalebench.session.selftest.bench import Bench
from scalebench.spec import StepPlan
from scalebench.spec.base import COLLECTIVES, DtypeName
from scalebench.spec.probes import ClockCheck, InjectedFault, Sweep, Transfer
from scalebench.spec.world import BOTH_WAYS_SHARE, VirtualHosts
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


def keep(certificate: Certificate) -> Path:
    """Store a certificate for the runs to come; return its file.

    Raises:
        OSError: It cannot be written.
    """
    folder = certificates_folder()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{certificate.id}.json"
    write_model(target, certificate)
    return target


def newest(environment: Mapping[str, Any]) -> Certificate | None:
    """Return the newest certificate of the machine with this fingerprint, or None.

    One of other software, or of a machine with other devices, does not hold.
    """
    wanted = identity(environment)
    return next((one for one in _stored() if one.machine == wanted), None)


def _stored() -> Iterator[Certificate]:
    """Yield what can be read, the newest first: names begin with the time."""
    for path in sorted(certificates_folder().glob("*.json"), reverse=True):
        with suppress(OSError, ValidationError, ValueError):
            certificate = Certificate.model_validate_json(path.read_text())
            if certificate.format == FORMAT:
                yield certificate


SIZES_BYTES = (24, 4096, 262144)
DTYPES: tuple[DtypeName, ...] = ("float32", "int8")
NUM_RANKS = 3
MOST_WRONG = 20


def results(bench: Bench) -> Iterator[Line]:
    """Yield how many elements were wrong, with none injected and with some."""
    found = _sweep(bench, None)
    num_wrong = sum(one.num_wrong for one in found)
    kinds = len({one.transfer.operation for one in found})
    yield _line(
        "results of collectives",
        injected=0,
        recovered=num_wrong,
        detail=f"{kinds} operations, {sum(one.num_elements for one in found)} elements",
    )
    fault = InjectedFault(
        kind="wrong_elements",
        rank=bench.random.randrange(NUM_RANKS),
        count=bench.random.randint(1, MOST_WRONG),
    )
    found = _sweep(bench, fault)
    yield _line(
        "wrong elements planted",
        injected=fault.count,
        recovered=sum(one.num_wrong for one in found),
        detail=f"rank {fault.rank} of {NUM_RANKS}",
    )


def _line(name: str, injected: int, recovered: int, detail: str) -> Line:
    error = recovered - injected
    return Line(
        name=name,
        unit="elements",
        injected=injected,
        recovered=recovered,
        error_ratio=error / max(injected, 1),
        limit=0.0,
        limit_of="elements",
        detail=detail,
    )


def _sweep(bench: Bench, fault: InjectedFault | None) -> tuple[TimedTransfer, ...]:
    transfers = tuple(
        Transfer(operation=name, size_bytes=size, dtype=dtype, back_to_back=1)
        for name in COLLECTIVES
        for size in SIZES_BYTES
        for dtype in DTYPES
    )
    plan = Sweep(
        world_size=NUM_RANKS,
        device="cpu",
        backend="gloo",
        threads=1,
        transfers=transfers,
        repeats=1,
    )
    return bench.probe(plan, fault)[0].sweep


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
