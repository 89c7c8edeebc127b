"""When a launch's clean steps were run, on the clock that the node was watched by.

Stamps: what the machine did while a row was measured that makes its numbers doubtful.

A stamp is a name, or a name and details behind a colon. Where something could not be watched
there is no stamp: the record says what was not watched, and a stamp says only what was seen.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from scalebench.analysis.rows.launches import Context, Fields, Launches, known
from scalebench.analysis.steps import clean_pace, skipped_steps
from scalebench.records.measured.rank import Block
from scalebench.records.measured.trace import DeviceTrack, HostLoad, throttle_reasons
from scalebench.records.run import CellResult
from scalebench.records.summary import Correctness, Row
from scalebench.spec import STRATEGIES, Cell, FromFramework, Script
from scalebench.spec.presets import PacedShape
from scalebench.units import bytes_, percent

MERGED_GAP_NS = 100_000_000
"""Pauses that NVML's energy counter, which moves every 20 to 100 ms, cannot tell from work."""
POWER_CAP = "power cap"
"""A GPU at work is often at the cap it was sold with. So the cap disturbs a comparison only where
the baseline was not at its own; what it does to the clocks is told by ``clocks differ``."""

THROTTLING = frozenset(
    {
        POWER_CAP,
        "hardware slowdown",
        "software thermal slowdown",
        "hardware thermal slowdown",
        "hardware power brake",
    }
)
"""Reasons for which a device runs slower than it was asked to. Idling, application clocks, sync
boost and display clocks are what somebody asked for; board and reliability limits are where
boosting ends. Source: ``nvmlClocksEventReasons`` in NVML's reference."""

THROTTLED_SHARE = 0.05
"""Of the readings; the slowdown bit may be set for a moment whenever the power state changes."""
CLOCK_TOLERANCE = 0.02
STEAL_LIMIT = 0.01
FOREIGN_CORES_LIMIT = 0.1
"""A tenth of a processor. An idle machine's own services take a few hundredths; one busy process
takes a whole one, and ten times less already holds up the slowest rank, which is what counts. As a
share of all processors it would let that process pass unseen on a large machine."""
MIN_FOREIGN_CPU_S = 0.1
"""What the kernel's counters, which move in ticks of 10 ms for each kind of time, surely tell."""

OWN_SCRIPT = "it is your own script: there is no reference to compare its results with"


@dataclass(frozen=True)
class Window:
    """A stretch of clean steps, of all ranks together.

    Attributes:
        start_ns: When the first rank began.
        end_ns: When the last rank was done.
    """

    start_ns: int
    end_ns: int
    num_steps: int

    @property
    def length_s(self) -> float:
        """Length in seconds."""
        return (self.end_ns - self.start_ns) / 1e9


def clean_windows(result: CellResult) -> list[Window]:
    """Return the clean windows of a launch in order; clean blocks in close succession are one.

    A block whose times were not noted is left out.
    """
    merged: list[Window] = []
    blocks_by_number = zip(*(rank.blocks for rank in result.ranks), strict=False)
    for window in filter(None, map(_window, blocks_by_number)):
        last = merged[-1] if merged else None
        if last and 0 <= window.start_ns - last.end_ns <= MERGED_GAP_NS:
            steps = last.num_steps + window.num_steps
            merged[-1] = Window(last.start_ns, window.end_ns, steps)
        else:
            merged.append(window)
    return merged


def _window(blocks: Sequence[Block]) -> Window | None:
    """Return the window of one block on all ranks; None: not clean, or its times are unknown."""
    starts = [block.start_ns for block in blocks if block.start_ns is not None]
    ends = [block.end_ns for block in blocks if block.end_ns is not None]
    is_clean = all(block.phase == "clean" for block in blocks)
    if not is_clean or len(starts) != len(blocks) or len(ends) != len(blocks):
        return None
    return Window(min(starts), max(ends), blocks[0].count)


def used_devices(result: CellResult) -> list[DeviceTrack] | str:
    """Return the tracks of the GPUs that the ranks trained on, or why they are not known."""
    if result.node is None:
        return "the node was not watched"
    if result.cell.device != "cuda":
        return "the ranks ran on the CPU"
    used = [rank.facts.get("device_uuid") for rank in result.ranks]
    if None in used:
        return "a rank did not say which device it used"
    tracks = {_bare(track.uuid): track for track in result.node.devices}
    wanted = dict.fromkeys(_bare(str(uuid)) for uuid in used)
    missing = [uuid for uuid in wanted if uuid not in tracks]
    if missing or not wanted:
        why = result.node.unavailable
        return next(iter(why.values()), f"device {', '.join(missing) or 'unknown'} was not sampled")
    return [tracks[uuid] for uuid in wanted]


def _bare(uuid: str) -> str:
    """Return a UUID without what NVML writes before it and torch does not."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-").lower()


def validity_of_row(row: Launches, run: Context) -> Fields:
    """Return whether a row's results are right, and the stamps of what makes it doubtful."""
    cell, correctness, base = row.cell, _correctness(row), run.baseline(row)
    good = list(row.good.values())
    stamps = {
        "oversubscribed": cell.oversubscribed,
        "paced": isinstance(cell.workload, PacedShape),
        "unsteady": any(not result.ranks[0].steady for result in good),
        "unverified": correctness is not None and correctness.status == "unverified",
    }
    overload = cell.virtual_hosts and cell.virtual_hosts.overload(cell.world_size)
    return {
        "correctness": known(correctness, "the inspection launch failed"),
        "stamps": [
            *(name for name, applies in stamps.items() if applies),
            *([f"link not held: {overload}"] if overload else []),
            *validity_stamps(good, list(base.good.values()) if base else []),
            *([] if row.counted else ["samples not counted"]),
        ],
    }


def _correctness(row: Launches) -> Correctness | None:
    """Return the comparison with the reference as rank 0 tells it (every rank was compared)."""
    if isinstance(row.cell.strategy, Script):
        return Correctness(status="unverified", reason=OWN_SCRIPT) if row.good else None
    ranks = row.inspection.ranks if row.inspection is not None else []
    verification = next((rank.verification for rank in ranks if rank.rank == 0), None)
    if verification is None:
        return None
    return Correctness.model_validate(verification.model_dump())


def validity_stamps(
    row_results: Sequence[CellResult], baseline_results: Sequence[CellResult]
) -> list[str]:
    """Return the stamps of a row, the gravest first.

    ``baseline_results``: those of the row that it is compared with; may be empty.
    """
    stamps = {
        "throttled": _throttled(row_results, baseline_results),
        "clocks differ": _clocks_differ(row_results, baseline_results),
        "foreign load": _foreign_load(row_results),
        "allocator retries": _allocator_retries(row_results),
        "swap": _swap(row_results),
        "skipped steps": _skipped(row_results),
    }
    return [f"{name}: {details}" for name, details in stamps.items() if details]


def _throttled(results: Sequence[CellResult], baseline: Sequence[CellResult]) -> str:
    """Say which reasons held in what share of the clean readings of the worst device."""
    held = _held_back(results)
    if POWER_CAP in _held_back(baseline):
        held.pop(POWER_CAP, None)
    ordered = sorted(held.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{reason} in {percent(share)} of the readings" for reason, share in ordered)


def _held_back(results: Sequence[CellResult]) -> dict[str, float]:
    """Return the reasons that held for long → their share of the readings of the worst device."""
    worst: dict[str, float] = {}
    for device, windows in _devices(results):
        bits = _in_windows(device.states.time_ns, device.states.throttle_bits, windows)
        for reason in THROTTLING:
            held = sum(reason in throttle_reasons(b) for b in bits)
            if bits and held > max(1, THROTTLED_SHARE * len(bits)):
                worst[reason] = max(worst.get(reason, 0.0), held / len(bits))
    return worst


def _clocks_differ(results: Sequence[CellResult], baseline: Sequence[CellResult]) -> str:
    """Say the median clock of the device that is furthest from the baseline's."""
    base = _median_clocks(baseline)
    clocks = _median_clocks(results)
    if not base or not clocks:
        return ""
    reference = float(np.median(base))
    furthest = max(clocks, key=lambda hz: abs(hz - reference))
    if abs(furthest - reference) <= CLOCK_TOLERANCE * reference:
        return ""
    return f"{furthest / 1e6:.0f} MHz, the baseline's {reference / 1e6:.0f} MHz"


def _median_clocks(results: Sequence[CellResult]) -> list[float]:
    """Return the median clock in the clean windows, per launch and device; hertz."""
    readings = (
        _in_windows(device.states.time_ns, device.states.sm_clock_hz, windows)
        for device, windows in _devices(results)
    )
    return [float(np.median(clocks)) for clocks in readings if clocks]


def _foreign_load(results: Sequence[CellResult]) -> str:
    """Say the most that others took of processors and GPUs in any launch."""
    hosts = _hosts(results)
    steal = max((host.steal_fraction or 0.0 for host in hosts), default=0.0)
    cores = max((_foreign_cores(host) for host in hosts), default=0.0)
    on_gpus = max(
        (
            number or 0
            for device, _ in _devices(results)
            for number in device.traffic.foreign_processes
        ),
        default=0,
    )
    found = {
        f"{percent(steal)} of the processors' time stolen": steal > STEAL_LIMIT,
        f"{cores:.1f} processors busy with other programs": cores > FOREIGN_CORES_LIMIT,
        f"{on_gpus} other program(s) on a GPU": on_gpus > 0,
    }
    return "; ".join(text for text, applies in found.items() if applies)


def _foreign_cores(host: HostLoad) -> float:
    """Return the processors that others kept busy; 0 where the counters are too coarse to say."""
    cores = host.foreign_cores or 0.0
    return cores if cores * host.wall_s >= MIN_FOREIGN_CPU_S else 0.0


def _allocator_retries(results: Sequence[CellResult]) -> str:
    """Say how often the caching allocator of a rank had to free what it held and try again."""
    retries = [
        getattr(rank.memory, "allocator_retries", None) or 0
        for result in results
        for rank in result.ranks
    ]
    most = max(retries, default=0)
    return f"{most} on a rank" if most > 0 else ""


def _skipped(results: Sequence[CellResult]) -> str:
    """Say how many clean steps were done for nothing, since float16 gradients overflowed."""
    skipped = sum(len(skipped_steps(result.ranks)) for result in results)
    return f"{skipped} of {sum(len(clean_pace(r)) for r in results)} clean steps" if skipped else ""


def _swap(results: Sequence[CellResult]) -> str:
    """Say how much the machine swapped in the worst launch."""
    swapped = [(h.swap_in_bytes or 0) + (h.swap_out_bytes or 0) for h in _hosts(results)]
    most = max(swapped, default=0)
    return f"{bytes_(most)} read or written" if most > 0 else ""


def _hosts(results: Sequence[CellResult]) -> list[HostLoad]:
    return [result.node.host for result in results if result.node and result.node.host]


def _devices(results: Sequence[CellResult]) -> Iterator[tuple[DeviceTrack, list[Window]]]:
    """Return every used device of every launch with the launch's clean windows."""
    for result in results:
        devices = used_devices(result)
        if not isinstance(devices, str):
            windows = clean_windows(result)
            yield from ((device, windows) for device in devices)


def _in_windows(
    time_ns: Sequence[int], values: Sequence[int | None], windows: Sequence[Window]
) -> list[int]:
    """Return the values that were read within any of the windows."""
    return [
        value
        for at, value in zip(time_ns, values, strict=False)
        if value is not None and any(w.start_ns <= at <= w.end_ns for w in windows)
    ]


NOT_REACHED = "not run: the run is "
"""Begins the reason of a row that an interruption or ``--budget`` left: ``--resume`` runs it."""


def failed_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that failed or ran out of memory."""
    return [row for row in rows if row.status in ("failed", "oom")]


def unmeasured_cases(rows: Iterable[Row | Cell]) -> list[str]:
    """Return the cases whose rows are all skipped, as ``suite: case``.

    Other frameworks count as one case of their suite: few people have all of them installed.
    """
    skipped: dict[str, list[bool]] = {}
    for row in rows:
        kind = row.strategy.kind if isinstance(row, Cell) else row.strategy
        strategy = STRATEGIES.get(kind)
        of_others = strategy is not None and issubclass(strategy, FromFramework)
        name = f"{row.suite}: {'other frameworks' if of_others else row.case}"
        skipped.setdefault(name, []).append(_is_skipped(row))
    return [name for name, of_case in skipped.items() if all(of_case)]


def _is_skipped(row: Row | Cell) -> bool:
    if isinstance(row, Cell):
        return row.skip_reason is not None
    return row.status == "skipped" and not (row.reason or "").startswith(NOT_REACHED)
