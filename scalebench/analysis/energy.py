"""Energy per sample, from what NVML told while the clean steps ran.

NVML's counter moves in steps (every 20 ms to 100 ms, by generation), so a window's ends are known
no better than that: only windows of 2 s and more are used, in which it moved at least ten times.
Without a counter power is integrated, which is less: newer devices give the mean of the last
second, and some sample a quarter of the time (Yang, Adamek & Armour 2023, "Part-time power
measurements"; ``nvmlDeviceGetPowerUsage`` in NVML's reference). ``source`` tells which it was.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scalebench.analysis.timing.windows import Window, clean_windows, used_devices
from scalebench.records.measured.telemetry import DeviceTrack
from scalebench.records.run import CellResult
from scalebench.spec.suites import ENERGY_WINDOW_S

MIN_UPDATES = 10
MAX_GAP_S = 1.0

Source = Literal["counter", "power"]
Series = NDArray[np.float64]


@dataclass(frozen=True)
class Energy:
    """Joules per sample, or why there are none.

    Attributes:
        j_per_sample: Sum over the devices used; None: see ``reason``.
        source: ``counter``: the devices' own energy counters (measured); ``power``: power was
            integrated for at least one device (derived).
        reason: Why it is null.
    """

    j_per_sample: float | None = None
    source: Source | None = None
    reason: str | None = None


def energy_per_sample(result: CellResult) -> Energy:
    """Return the energy of the GPUs over the clean windows, per sample of the job.

    Everything that the devices used between the first and the last step of a window counts,
    the first step of each block and the ranks' agreement between blocks included.
    """
    devices = used_devices(result)
    if isinstance(devices, str):
        return Energy(reason=devices)
    windows = clean_windows(result)
    if not windows:
        return Energy(
            reason="the clean steps are the last of the warm-up; energy needs "
            f"{ENERGY_WINDOW_S:g} s of steps after it: leave out --quick, --steps and --precision"
        )
    long_enough = [window for window in windows if window.length_s >= ENERGY_WINDOW_S]
    if not long_enough:
        longest = max(window.length_s for window in windows)
        return Energy(
            reason=f"the longest clean window is {longest:.2g} s; energy needs "
            f"{ENERGY_WINDOW_S:g} s, so leave out --quick, --steps and --precision"
        )
    samples = sum(window.num_steps for window in long_enough) * result.cell.global_batch
    joules = 0.0
    source: Source = "counter"
    for device in devices:
        energy = _device_energy(device, long_enough)
        if energy.reason is not None:
            return Energy(reason=f"{device.uuid}: {energy.reason}")
        joules += energy.joules
        source = "power" if energy.source == "power" else source
    return Energy(joules / samples, source)


@dataclass(frozen=True)
class _Joules:
    joules: float = 0.0
    source: Source = "counter"
    reason: str | None = None


def _device_energy(device: DeviceTrack, windows: Sequence[Window]) -> _Joules:
    """Return the energy of one device over the windows: by its counter, else by its power."""
    states, told = device.states, device.unavailable
    by_counter = _total([_counted(states.time_ns, states.energy_j, w) for w in windows])
    if not isinstance(by_counter, str):
        return _Joules(by_counter, "counter")
    by_power = _total([_integrated(states.time_ns, states.power_w, w) for w in windows])
    if not isinstance(by_power, str):
        return _Joules(by_power, "power")
    counter, power = told.get("energy_j", by_counter), told.get("power_w", by_power)
    return _Joules(reason=f"energy counter: {counter}; power: {power}")


def _total(parts: Sequence[float | str]) -> float | str:
    """Return the sum, or the first of the texts among the parts."""
    total = 0.0
    for part in parts:
        if isinstance(part, str):
            return part
        total += part
    return total


def _counted(
    time_ns: Sequence[int], energy_j: Sequence[float | None], window: Window
) -> float | str:
    """Return the joules that the counter advanced in a window, or why it does not tell."""
    known = _bracketing(time_ns, energy_j, window)
    if isinstance(known, str):
        return known
    times, values = known
    if np.any(np.diff(values) < 0):
        return "it went backwards: the driver was reloaded"
    num_updates = int(np.count_nonzero(np.diff(values)))
    if num_updates < MIN_UPDATES:
        return f"it changed {num_updates} times in the window; {MIN_UPDATES} are needed"
    ends = np.interp(_seconds([window.start_ns, window.end_ns], window), times, values)
    return float(ends[1] - ends[0])


def _integrated(
    time_ns: Sequence[int], power_w: Sequence[float | None], window: Window
) -> float | str:
    """Return the integral of power over a window in joules (trapezoids), or why there is none."""
    known = _bracketing(time_ns, power_w, window)
    if isinstance(known, str):
        return known
    times, values = known
    ends = _seconds([window.start_ns, window.end_ns], window)
    inside = times[(times > ends[0]) & (times < ends[1])]
    grid = np.concatenate((ends[:1], inside, ends[1:]))
    power = np.interp(grid, times, values)
    return float(np.sum(np.diff(grid) * (power[1:] + power[:-1]) / 2))


def _bracketing(
    time_ns: Sequence[int], values: Sequence[float | None], window: Window
) -> tuple[Series, Series] | str:
    """Return times (seconds from the window's start) and values around a window, nulls left out.

    The last reading before the window and the first one after it are included.
    """
    pairs = [(t, v) for t, v in zip(time_ns, values, strict=False) if v is not None]
    if not pairs:
        return "not read"
    times = _seconds([t for t, _ in pairs], window)
    known = np.array([v for _, v in pairs], dtype=float)
    first = int(np.searchsorted(times, 0.0, side="right")) - 1
    last = int(np.searchsorted(times, window.length_s, side="left"))
    if first < 0 or last >= len(times):
        return "the readings do not cover the whole window"
    times, known = times[first : last + 1], known[first : last + 1]
    if np.max(np.diff(times)) > MAX_GAP_S:
        return f"there was no reading for more than {MAX_GAP_S:g} s of the window"
    return times, known


def _seconds(time_ns: Sequence[int], window: Window) -> Series:
    """Return times as seconds from the window's start; exact, because differences are small."""
    return np.array([t - window.start_ns for t in time_ns], dtype=float) / 1e9
