"""What a run's folder holds beyond its summary, as small as a page can draw it.

Pure functions of a `StoredRun`: a step as its ranks went through it, step times by rank and
number, what the devices did, the calibrated link, the projection to more ranks. A summary alone
can be rendered, too: then none of this is shown.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from scalebench.attribution import attribute
from scalebench.costmodel.link_profile import LinkProfile
from scalebench.evidence.outlook import Outlook, outlook_of
from scalebench.evidence.rank_steps import (
    Autocorrelation,
    Course,
    RankGrid,
    autocorrelation_of,
    course,
    rank_grid,
)
from scalebench.evidence.telemetry import DeviceCourse, device_courses
from scalebench.evidence.timeline import StepTimeline, step_timeline
from scalebench.records import CellResult
from scalebench.row_launches import Launches, grouped
from scalebench.store import StoredRun
from scalebench.summary import Summary

__all__ = [
    "Autocorrelation",
    "Course",
    "DeviceCourse",
    "Evidence",
    "Outlook",
    "RankGrid",
    "StepTimeline",
    "gather",
]


@dataclass(frozen=True)
class Evidence:
    """What the page shows beyond the summary; of every case the largest size that was measured.

    Attributes:
        link: Links as calibrated in the run; None: see ``link_unavailable``.
        timelines: One step of every traced case.
        grids: Step times by rank and step, of the first launch.
        courses: From the first step to the last clean one, of every launch.
        autocorrelations: Of the clean steps.
        devices: Power, clocks and temperature over the first launch.
    """

    link: LinkProfile | None
    link_unavailable: str
    timelines: tuple[StepTimeline, ...]
    grids: tuple[RankGrid, ...]
    courses: tuple[Course, ...]
    autocorrelations: tuple[Autocorrelation, ...]
    devices: tuple[DeviceCourse, ...]
    outlook: Outlook


def gather(run: StoredRun, summary: Summary) -> Evidence:
    """Gather what a run's folder holds beyond its summary."""
    shown = list(_shown(run))
    firsts = [next(iter(launches.good.values())) for launches in shown]
    several = [first for first in firsts if first.cell.world_size > 1]
    found = [autocorrelation_of([*launches.good.values()]) for launches in shown]
    return Evidence(
        link=run.link,
        link_unavailable=run.link_unavailable,
        timelines=tuple(_timelines(several)),
        grids=tuple(rank_grid(first) for first in several),
        courses=tuple(course(r) for launches in shown for r in launches.good.values()),
        autocorrelations=tuple(one for one in found if one is not None),
        devices=tuple(one for first in firsts for one in device_courses(first)),
        outlook=outlook_of(run, summary),
    )


def _shown(run: StoredRun) -> Iterator[Launches]:
    """Yield the largest size of each case that went well, oversubscribed only at need."""
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


def _timelines(results: list[CellResult]) -> Iterator[StepTimeline]:
    for result in results:
        launch = attribute(result)
        if launch is not None:
            yield step_timeline(launch)
