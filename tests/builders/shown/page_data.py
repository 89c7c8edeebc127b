"""Synthetic page_data for the page: what a run's folder would hold beyond a synthetic summary."""

from collections.abc import Sequence

import numpy as np

from scalebench.analysis.page_data import DeviceSeries, Extrapolation, PageData, Throttled
from scalebench.analysis.projection.recovery import ProjectedRow, Projection
from scalebench.analysis.rank_steps import HIDDEN, RankGrid, RankStep, ShownOperation, StepTimeline
from scalebench.costmodel.links.fitting import fit_links
from scalebench.costmodel.links.profile import CalibratedPoint, LinkProfile
from scalebench.records.summary import Row, Summary
from tests.builders.links.link_sweeps import sizes, sweep
from tests.builders.summaries import make_plain, make_summary, predicted_row, traced_rows

SPANS = {
    "compute": ((0.0, 0.010), (0.014, 0.016)),
    "exposed_transfer": ((0.010, 0.012),),
    "wait": ((0.012, 0.014),),
    "other_idle": ((0.016, 0.018),),
    "data_stall": ((0.018, 0.020),),
    HIDDEN: ((0.008, 0.010),),
}
"""A step of 20 ms: 12 computed, 2 each of transfer, wait, idle and stall."""


def make_evidence(summary: Summary, device: str = "0: a GPU") -> PageData:
    """PageData of every case's largest measured size; devices only for rows on GPUs."""
    rows = largest(summary.rows)
    several = [row for row in rows if row.world_size > 1]
    on_gpu = [row for row in rows if row.device == "cuda"]
    return PageData(
        link=make_profile(),
        link_unavailable="",
        timelines=tuple(map(make_timeline, several)),
        grids=tuple(map(make_grid, several)),
        devices=tuple(make_device(row, device) for row in on_gpu),
        extrapolation=make_outlook(summary.run_id, several),
    )


def largest(rows: Sequence[Row]) -> list[Row]:
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        if row.status == "ok" and row.step_s is not None and not row.oversubscribed:
            found[row.suite, row.case] = row
    return list(found.values())


def make_timeline(row: Row) -> StepTimeline:
    ranks = tuple(
        RankStep(rank, SPANS, (ShownOperation(row.case, 0, 1_000_000, 0.008, 0.014),))
        for rank in range(min(row.world_size, 16))
    )
    place = (row.suite, row.case, row.world_size)
    return StepTimeline(*place, 0, 1, 0.02, ranks, row.world_size, None)


def make_grid(row: Row) -> RankGrid:
    """The last rank is 10 % slower; the first step of each block counts for nothing."""
    deviation = np.zeros((row.world_size, 30), dtype=np.float32)
    deviation[-1] = 0.1
    deviation[:, :5] += 1.0
    deviation[:, 5] = np.nan
    place = (row.suite, row.case, row.world_size, 0)
    ranks, steps = tuple(range(row.world_size)), tuple(range(30))
    return RankGrid(*place, deviation, ranks, steps, 0.02, 5, row.world_size, 30)


def make_device(row: Row, device: str) -> DeviceSeries:
    times = [0.1 * i for i in range(100)]
    series = {
        "power_w": tuple((t, 300.0 + t) for t in times),
        "sm_clock_hz": tuple((t, 1.9e9) for t in times),
        "temperature_c": tuple((t, 60.0) for t in times),
    }
    throttled = (Throttled(4.0, 5.5, ("power cap",)),)
    place = (row.suite, row.case, row.world_size, 0)
    return DeviceSeries(*place, device, series, throttled, ((2.0, 8.0),))


def make_profile() -> LinkProfile:
    """12 sizes on which D bytes take D·10 ns and 3 %, at 2 and 4 ranks."""
    size = sizes(12, 1 << 10, 1 << 24)
    points = [p for n in (2, 4) for p in sweep(size, size * 1e-8 * 1.03, world_size=n)]
    return LinkProfile(
        created="2026-01-01T00:00:00+00:00",
        version="0.1.0",
        device="cpu",
        backend="gloo",
        points=tuple(CalibratedPoint.model_validate(p.model_dump()) for p in points),
        fits=tuple(fit_links(points)[0]),
    )


def make_outlook(run_id: str, rows: Sequence[Row]) -> Extrapolation:
    if not rows:
        return Extrapolation(None, {}, "nothing was measured on more than one rank")
    projected = [make_projected(row, n) for row in rows for n in (8, 16, 64)]
    nothing = {"step_s": None, "efficiency": None, "reason": "no sample for each rank"}
    refused = [make_projected(rows[0], 256).model_copy(update=nothing)]
    base = Projection(
        run_id=run_id,
        assumptions=("links as this run calibrated them", "no waiting"),
        typical_error=0.02,
        num_scored=3,
        rows=(*projected, *refused),
    )
    return Extrapolation(base, {"2 times the bandwidth": base})


def make_projected(row: Row, world_size: int) -> ProjectedRow:
    step_s, efficiency = 0.02, 0.9 / world_size**0.2
    told = {"suite": row.suite, "case": row.case, "world_size": world_size, "global_batch": 256}
    told |= {"rank_batch": max(1, 256 // world_size), "throughput": 256 / step_s}
    told |= {"step_s": step_s, "low_s": 0.9 * step_s, "high_s": 1.1 * step_s}
    told |= {"efficiency": efficiency, "ideal_s": efficiency * step_s}
    return ProjectedRow(**told, compute_inflation_s=0.0, exposed_transfer_s=0.001)


def everything():
    """A summary in which every section has something to show, and its page_data."""
    rows = [make_plain(), *(predicted_row(row) for row in traced_rows()[1:])]
    summary = make_summary(rows)
    return summary, make_evidence(summary)
