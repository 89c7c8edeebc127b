"""What the devices of a row did over one launch: power, clocks, temperature, throttling."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scalebench.analysis.page_data.rank_steps import extremes
from scalebench.analysis.timing.windows import clean_windows, used_devices
from scalebench.records.measured.telemetry import DeviceTrack, throttle_reasons
from scalebench.records.run import CellResult

MOST_POINTS = 150
"""Stretches of each series that keep their extremes."""

HARMLESS = frozenset({"GPU idle", "application clocks", "sync boost", "display clocks"})
"""Reasons why the clock is not higher that are no throttling."""


@dataclass(frozen=True)
class Throttled:
    """A stretch in which a device held its clock down; seconds after the first reading."""

    start_s: float
    end_s: float
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class DeviceSeries:
    """One device over one launch; times in seconds after the launch's first reading.

    Attributes:
        series: ``power_w``, ``sm_clock_hz``, ``temperature_c`` → (time, value) pairs; a series
            that was never read is not there.
        windows: Beginning and end of the clean windows.
    """

    suite: str
    case: str
    world_size: int
    repeat: int
    device: str
    series: dict[str, tuple[tuple[float, float], ...]]
    throttled: tuple[Throttled, ...]
    windows: tuple[tuple[float, float], ...]


SERIES = ("power_w", "sm_clock_hz", "temperature_c")


def device_series_of(result: CellResult) -> list[DeviceSeries]:
    """Return the devices that the ranks of a launch used; none where they were not watched."""
    devices = used_devices(result)
    if isinstance(devices, str):
        return []
    read = [track for track in devices if track.states.time_ns]
    if not read:
        return []
    origin = min(track.states.time_ns[0] for track in read)
    windows = tuple(
        ((w.start_ns - origin) / 1e9, (w.end_ns - origin) / 1e9) for w in clean_windows(result)
    )
    return [_device_series(result, track, origin, windows) for track in read]


def _device_series(
    result: CellResult, track: DeviceTrack, origin: int, windows: tuple[tuple[float, float], ...]
) -> DeviceSeries:
    times = [(t - origin) / 1e9 for t in track.states.time_ns]
    series = {name: _known(times, getattr(track.states, name)) for name in SERIES}
    cell = result.cell
    return DeviceSeries(
        suite=cell.suite,
        case=cell.case,
        world_size=cell.world_size,
        repeat=cell.repeat,
        device=f"{track.index if track.index is not None else '?'}: {track.name or track.uuid}",
        series={name: found for name, found in series.items() if found},
        throttled=tuple(_throttled(times, track.states.throttle_bits)),
        windows=windows,
    )


def _known(
    times: Sequence[float], values: Sequence[float | None]
) -> tuple[tuple[float, float], ...]:
    known = [(t, float(v)) for t, v in zip(times, values, strict=False) if v is not None]
    kept = extremes(np.array([v for _, v in known]), MOST_POINTS) if known else ()
    return tuple(known[int(i)] for i in kept)


def _throttled(times: Sequence[float], bits: Sequence[int | None]) -> list[Throttled]:
    """Return the stretches of equal reasons, from one reading to the next."""
    found: list[Throttled] = []
    for index, (time, read) in enumerate(zip(times, bits, strict=False)):
        reasons = tuple(r for r in throttle_reasons(read or 0) if r not in HARMLESS)
        if not reasons:
            continue
        end = times[index + 1] if index + 1 < len(times) else time
        if found and found[-1].reasons == reasons and found[-1].end_s == time:
            found[-1] = Throttled(found[-1].start_s, end, reasons)
        else:
            found.append(Throttled(time, end, reasons))
    return found
