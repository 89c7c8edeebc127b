"""What a run's folder holds beyond its summary, as small as a page can draw it.

Pure functions of a `StoredRun`: a step as its ranks went through it, step times by rank and
number, what the devices did, the calibrated link, the projection to more ranks. A summary alone
can be rendered, too: then none of this is shown.

What the devices of a row did over one launch: power, clocks, temperature, throttling.

The curves of races, and of efficiency at sizes that were not measured, as a page draws them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from scalebench.analysis.projection.project import project
from scalebench.analysis.projection.recovery import Projection
from scalebench.analysis.rank_steps import (
    ExpertLoad,
    RankGrid,
    StepTimeline,
    expert_load_of,
    extremes,
    rank_grid,
    step_timeline,
)
from scalebench.analysis.rows.launches import Launches, Table, grouped
from scalebench.analysis.run import StoredRun
from scalebench.analysis.validity import clean_windows, used_devices
from scalebench.costmodel.links.profile import LinkProfile
from scalebench.costmodel.what_if import AS_MEASURED, WhatIf
from scalebench.errors import ScalebenchError
from scalebench.records.measured.rank import RacePoint
from scalebench.records.measured.trace import DeviceTrack, throttle_reasons
from scalebench.records.run import CellResult
from scalebench.records.summary import Summary

MOST_POINTS = 150
"""Stretches of each series that keep their extremes."""

HARMLESS = frozenset({"GPU idle", "application clocks", "sync boost", "display clocks"})
"""Reasons why the clock is not higher that are no throttling."""
__all__ = [
    "DeviceSeries",
    "ExpertLoad",
    "Extrapolation",
    "PageData",
    "RaceCurve",
    "RankGrid",
    "StepTimeline",
    "gather",
]


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


@dataclass(frozen=True)
class RaceCurve:
    """The losses of one launch of a race, from before its training to its end.

    Attributes:
        samples: That all ranks together had trained on.
        loss: Mean over the held-out samples; None: it was not finite.
        sent_bytes: That the rank which sends most had sent; None: each step sends as many.
    """

    suite: str
    case: str
    world_size: int
    repeat: int
    samples: tuple[int, ...]
    trained_s: tuple[float, ...]
    loss: tuple[float | None, ...]
    global_batch: int
    sent_bytes: tuple[float, ...] | None = None


def race_curves(table: Table) -> Iterator[RaceCurve]:
    """Yield the curve of every launch of a race."""
    for row in table.values():
        for repeat, result in row.good.items():
            points = result.ranks[0].race if result.ranks else None
            if points:
                yield RaceCurve(
                    suite=row.cell.suite,
                    case=row.cell.case,
                    world_size=row.cell.world_size,
                    repeat=repeat,
                    samples=tuple(point.samples for point in points),
                    trained_s=tuple(point.trained_s for point in points),
                    loss=tuple(point.loss for point in points),
                    global_batch=row.cell.global_batch,
                    sent_bytes=_sent(points),
                )


def _sent(points: Sequence[RacePoint]) -> tuple[float, ...] | None:
    known = tuple(point.sent_bytes for point in points if point.sent_bytes is not None)
    return known if len(known) == len(points) else None


DOUBLINGS = 5
"""Sizes beyond the largest measured one."""

WHAT_IFS = (WhatIf(times_bandwidth=2.0), WhatIf(times_bandwidth=10.0), WhatIf(gradient_bits=16))


@dataclass(frozen=True)
class Extrapolation:
    """A run projected.

    Attributes:
        changed: What was changed, in words → the projection with it.
    """

    as_measured: Projection | None
    changed: dict[str, Projection]
    reason: str | None = None


def extrapolate(run: StoredRun, summary: Summary) -> Extrapolation:
    """Project a run to the sizes that it measured and to `DOUBLINGS` beyond."""
    sizes = _sizes(summary)
    if not sizes:
        return Extrapolation(None, {}, "nothing was measured on more than one rank")
    try:
        base = project(run, sizes, summary=summary)
    except ScalebenchError as reason:
        before = f"{run.paths.root} supports no projection: "
        return Extrapolation(None, {}, str(reason).removeprefix(before))
    changed = {} if run.imported is not None else dict(_changed(run, summary, sizes))
    return Extrapolation(base, changed)


def _changed(
    run: StoredRun, summary: Summary, sizes: list[int]
) -> Iterator[tuple[str, Projection]]:
    for what_if in WHAT_IFS:
        assert what_if != AS_MEASURED
        yield ", ".join(what_if.described()), project(run, sizes, what_if=what_if, summary=summary)


def _sizes(summary: Summary) -> list[int]:
    """Return the measured sizes beyond 1 that did not share devices, and the doublings."""
    measured = {
        row.world_size
        for row in summary.rows
        if row.status == "ok" and row.world_size > 1 and not row.oversubscribed
    }
    if not measured:
        return []
    return sorted(measured | {max(measured) * 2**k for k in range(1, DOUBLINGS + 1)})


@dataclass(frozen=True)
class PageData:
    """What the page shows beyond the summary; of every case the largest size that was measured.

    Attributes:
        link: Links as calibrated in the run; None: see ``link_unavailable``.
        timelines: One step of every traced case.
        grids: Step times by rank and step, of the first launch.
        devices: Power, clocks and temperature over the first launch.
        races: Of every launch of a race, at every size.
        expert_loads: Tokens by expert and step, of the first launch.
    """

    link: LinkProfile | None
    link_unavailable: str
    timelines: tuple[StepTimeline, ...]
    grids: tuple[RankGrid, ...]
    devices: tuple[DeviceSeries, ...]
    extrapolation: Extrapolation
    races: tuple[RaceCurve, ...] = ()
    expert_loads: tuple[ExpertLoad, ...] = ()


def gather(run: StoredRun, summary: Summary) -> PageData:
    """Gather what a run's folder holds beyond its summary."""
    shown = list(_shown(run))
    firsts = [next(iter(launches.good.values())) for launches in shown]
    several = [first for first in firsts if first.cell.world_size > 1]
    loads = [expert_load_of(first) for first in firsts]
    return PageData(
        link=run.link,
        link_unavailable=run.link_unavailable,
        timelines=tuple(_timelines(shown)),
        grids=tuple(rank_grid(first) for first in several),
        devices=tuple(one for first in firsts for one in device_series_of(first)),
        extrapolation=extrapolate(run, summary),
        races=tuple(race_curves(grouped(run))),
        expert_loads=tuple(one for one in loads if one is not None),
    )


def _shown(run: StoredRun) -> Iterator[Launches]:
    """Yield the largest size of each case that succeeded, oversubscribed only at need."""
    chosen: dict[tuple[str, str], Launches] = {}
    for (suite, case, _), launches in grouped(run).items():
        if not launches.good:
            continue
        before = chosen.get((suite, case))
        if before is None or _rank(launches) > _rank(before):
            chosen[suite, case] = launches
    yield from chosen.values()


def _rank(launches: Launches) -> tuple[bool, int]:
    return not launches.cell.oversubscribed, launches.cell.world_size


def _timelines(shown: list[Launches]) -> Iterator[StepTimeline]:
    for launches in shown:
        launch = launches.attributed.get(next(iter(launches.good)))
        if launch is not None and launches.cell.world_size > 1:
            yield step_timeline(launch)
