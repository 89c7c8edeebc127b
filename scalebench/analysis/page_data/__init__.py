"""What a run's folder holds beyond its summary, as small as a page can draw it.

Pure functions of a `StoredRun`: a step as its ranks went through it, step times by rank and
number, what the devices did, the calibrated link, the projection to more ranks. A summary alone
can be rendered, too: then none of this is shown.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from scalebench.analysis.page_data.races import Extrapolation, RaceCurve, extrapolate, race_curves
from scalebench.analysis.page_data.rank_steps import ExpertLoad, RankGrid, expert_load_of, rank_grid
from scalebench.analysis.page_data.telemetry import DeviceSeries, device_series_of
from scalebench.analysis.page_data.timeline import StepTimeline, step_timeline
from scalebench.analysis.rows.launches import Launches, grouped
from scalebench.analysis.run import StoredRun
from scalebench.costmodel.links.profile import LinkProfile
from scalebench.records.summary import Summary

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
