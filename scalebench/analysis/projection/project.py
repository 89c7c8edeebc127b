"""Sizes that were not measured: a run's cases, projected to other numbers of ranks.

A projection starts from the strategy at N=1 and from the links as the run calibrated them, or
from a topology with nominal links. Its interval holds how far the model was off where it could be
compared with a measurement, once more for every doubling, and what the link is less certain than
there: its own interval widens with every doubling beyond what was calibrated.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from scalebench.analysis.convergence.projected import (
    Training,
    noise_scale_of_workload,
    time_to_loss,
)
from scalebench.analysis.prediction_intervals import (
    Compared,
    half_width,
    known_of_step,
    typical_error,
)
from scalebench.analysis.prediction_scores import compared_rows
from scalebench.analysis.projection.rows import MeasuredShard, ProjectedRow, Projection
from scalebench.analysis.projection.starts import cases_at_one, start_of
from scalebench.analysis.rows.at_one_rank import AtOneRank, PipelineAtOneRank, step_at_one_rank
from scalebench.analysis.rows.fields import Unavailable
from scalebench.analysis.rows.launches import grouped
from scalebench.analysis.run import StoredRun
from scalebench.analysis.summarise import summarise
from scalebench.costmodel.links.profile import LinkProfile
from scalebench.costmodel.links.times import LinkModel, LinkTimes, NoFit
from scalebench.costmodel.links.topology import Topology
from scalebench.costmodel.step import PredictedStep
from scalebench.costmodel.what_if import AS_MEASURED, WhatIf
from scalebench.errors import ExitCode, ScalebenchError, UsageError
from scalebench.records.baseline import baseline_of, key_of
from scalebench.records.summary import Row, RowKey, Summary
from scalebench.spec import Cell
from scalebench.stats import Estimate


class MeasuredContention(NamedTuple):
    """How much longer a rank computes where others do at the same time, and at how many ranks."""

    factor: float
    world_size: int


def contention_of_case(rows: Sequence[Row], cell: Cell) -> MeasuredContention | None:
    """Return the contention at the largest number of ranks that a case was measured at.

    More ranks are taken to share as much: they bring their own hosts. None: it was not measured.
    """
    known = [
        MeasuredContention(row.prediction.contention, row.world_size)
        for row in rows
        if (row.suite, row.case) == (cell.suite, cell.case)
        and row.prediction is not None
        and row.prediction.contention is not None
    ]
    return max(known, key=lambda one: one.world_size, default=None)


def told_contention(found: Sequence[MeasuredContention]) -> tuple[str, ...]:
    """Return what a projection assumes of waiting and contention, in words."""
    if not found:
        return ("no waiting, no stalls, no contention",)
    sizes = sorted({one.world_size for one in found})
    low, high = (100 * (f(one.factor for one in found) - 1) for f in (min, max))
    factors = f"{low:+.1f} %" if f"{low:.1f}" == f"{high:.1f}" else f"{low:+.1f} to {high:+.1f} %"
    return (
        "no waiting, no stalls",
        f"contention as measured at N = {' and '.join(map(str, sizes))} ({factors})",
    )


class NothingToProject(ScalebenchError):
    """A run that supports no projection."""

    exit_code = ExitCode.INCONCLUSIVE


def project(
    run: StoredRun,
    world_sizes: Sequence[int],
    topology: Topology | None = None,
    what_if: WhatIf = AS_MEASURED,
    profile: LinkProfile | None = None,
    shards: Sequence[MeasuredShard] = (),
    summary: Summary | None = None,
    noise_scale: float | None = None,
) -> Projection:
    """Project every case of a run that can be predicted.

    Args:
        run: With its calibration, unless ``topology`` is given.
        world_sizes: Numbers of ranks, each at least 2.
        topology: Nominal links instead of the calibrated ones.
        what_if: Changes to what was measured.
        profile: Links calibrated elsewhere instead of the run's own.
        shards: Shards that were measured on the machine of the run.
        summary: Of the run; None: it is worked out.
        noise_scale: Gradient noise scale, samples; None: that of a race of the run, if there is
            one on the same workload.

    Raises:
        UsageError: A number of ranks below 2, or hierarchical without a topology.
        NothingToProject: No case supports a projection; the text says why.
    """
    _check(world_sizes, topology, what_if)
    summary = summary or summarise(run)
    scores = compared_rows(summary.rows)
    links = _links(run, topology, profile, what_if)
    own_links = _own_links(run) if topology is None and profile is None else None
    measured = {(shard.suite, shard.case, shard.world_size): shard for shard in shards}
    rows: list[ProjectedRow] = []
    refusals: dict[str, str] = {}
    contentions: list[MeasuredContention] = []
    table = grouped(run)
    starts = [start_of(one, table) for one in cases_at_one(run)]
    for one in starts:
        try:
            bare = step_at_one_rank(one.base)
        except Unavailable as reason:
            refusals[one.cell.case] = str(reason)
            continue
        contended = contention_of_case(summary.rows, one.cell)
        if contended is not None:
            bare = replace(bare, contention=contended.factor)
            contentions.append(contended)
        plain = _plain_step(summary.rows, one.cell.row_key)
        scale = _noise_scale(noise_scale, summary.rows, one.cell.workload.name)
        for world_size in world_sizes:
            there = one.cell_at(world_size)
            if isinstance(there, str):
                rows.append(_no_job(one.cell, world_size, there))
                continue
            shard = measured.get((one.cell.suite, one.cell.case, world_size))
            predicted = _predicted(there, bare, links, what_if, shard, own_links)
            row = _row(there, predicted, plain)
            if not isinstance(predicted, str):
                reach = _reach(predicted, bare, scores, topology, world_size)
                row = _with_interval(row, predicted.step_s, reach)
                row = _with_time_to_loss(row, plain, scale)
            rows.append(row.model_copy(update={"share": shard}))
    if not rows:
        told = "; ".join(f"{case}: {why}" for case, why in refusals.items()) or (
            "no strategy was measured at N=1"
        )
        raise NothingToProject(f"{run.paths.root} supports no projection: {told}.")
    told_links = "links as this run calibrated them"
    if topology is not None:
        told_links = "nominal links of the topology"
    elif profile is not None:
        told_links = f"links as calibrated {profile.created[:10]} ({profile.backend})"
    return Projection(
        run_id=run.info.run_id,
        assumptions=(
            told_links,
            *dict.fromkeys(one.assumption for one in starts if one.assumption),
            *what_if.told(),
            *told_contention(contentions),
        ),
        typical_error=typical_error(scores),
        num_scored=len(scores),
        rows=tuple(rows),
    )


def _check(world_sizes: Sequence[int], topology: Topology | None, what_if: WhatIf) -> None:
    below = [n for n in world_sizes if n < 2]
    if below:
        raise UsageError(
            f"--gpus {below[0]}: a projection is for 2 ranks or more; N=1 is measured."
        )
    if what_if.hierarchical and topology is None:
        raise UsageError("--hierarchical needs --topology, which says which ranks share a node.")


def _links(
    run: StoredRun, topology: Topology | None, profile: LinkProfile | None, what_if: WhatIf
) -> LinkTimes:
    faster = what_if.times_bandwidth
    if topology is not None:
        scaled = topology.faster(faster)
        return lambda op, n, size: scaled.time(op, n, size, what_if.hierarchical)
    calibrated = profile or run.link
    if calibrated is None:
        raise NothingToProject(
            f"{run.paths.root} supports no projection: {run.link_unavailable}. Measure 2 ranks or "
            "more with traced steps, or give --topology or --link-profile."
        )
    return LinkModel(calibrated.fits).faster(faster)


def _own_links(run: StoredRun) -> LinkModel | None:
    """Return the links of the run itself, with the pipelines that were played over them."""
    return LinkModel(run.link.fits, rehearsals=run.link.played) if run.link else None


def _plain_step(rows: Sequence[Row], key: RowKey) -> tuple[float, int] | None:
    """Return step and batch of a row's plain baseline, or None."""
    row = next((row for row in rows if key_of(row) == key), None)
    baseline = baseline_of(row, rows) if row is not None else None
    if baseline is None or baseline.step_s is None:
        return None
    return baseline.step_s.value, baseline.rank_batch


def _no_job(cell: Cell, world_size: int, reason: str) -> ProjectedRow:
    return ProjectedRow(
        suite=cell.suite,
        case=cell.case,
        world_size=world_size,
        global_batch=cell.global_batch,
        rank_batch=0,
        reason=reason,
    )


def _predicted(
    cell: Cell,
    bare: AtOneRank,
    links: LinkTimes,
    what_if: WhatIf,
    shard: MeasuredShard | None,
    own_links: LinkModel | None,
) -> PredictedStep | str:
    parts = what_if.microbatches if isinstance(bare, PipelineAtOneRank) else None
    parts = parts or cell.strategy.num_parts(cell.world_size) // cell.num_shards
    if cell.rank_batch % parts:
        return f"{cell.rank_batch} samples cannot be split into {parts} microbatches"
    try:
        if isinstance(bare, PipelineAtOneRank) and own_links is not None:
            bare = bare.played_over(own_links, cell)
        return bare.predict(cell, links, what_if, shard.step_s if shard else None)
    except NoFit as reason:
        return str(reason)


def _row(
    cell: Cell,
    step: PredictedStep | str,
    plain: tuple[float, int] | None,
) -> ProjectedRow:
    world_size = cell.world_size
    row = ProjectedRow(
        suite=cell.suite,
        case=cell.case,
        world_size=world_size,
        global_batch=cell.global_batch,
        rank_batch=cell.rank_batch,
    )
    if isinstance(step, str):
        return row.model_copy(update={"reason": step})
    found = {
        "step_s": step.step_s,
        "throughput": cell.global_batch / step.step_s,
        "bubble_s": step.bubble_s,
        "exposed_transfer_s": step.stalled_s,
        "calibrated_world_sizes": step.world_sizes,
        "outside": step.outside,
    }
    if plain is not None:
        ideal_s = plain[0] * cell.global_batch / world_size / plain[1]
        found |= {
            "efficiency": ideal_s / step.step_s,
            "ideal_s": ideal_s,
            "compute_inflation_s": step.computing_s - step.bubble_s - ideal_s,
        }
    return row.model_copy(update=found)


def _reach(
    step: PredictedStep,
    bare: AtOneRank,
    compared: Sequence[Compared],
    topology: Topology | None,
    world_size: int,
) -> float | str:
    """Return the half width of the interval of the step's logarithm; or why there is none."""
    if topology is not None:
        return "the links are nominal, not measured"
    largest = max(step.world_sizes, default=1)
    doublings = max(1.0, math.log2(world_size / largest))
    known = known_of_step(step, bare.spread, bare.num_launches)
    found = half_width(known, compared, doublings)
    if found is None:
        return "no prediction of this run could be compared with a measurement"
    return found


def _with_interval(row: ProjectedRow, step_s: float, reach: float | str) -> ProjectedRow:
    if isinstance(reach, str):
        return row.model_copy(update={"interval_reason": reach})
    ends = {"low_s": step_s * math.exp(-reach), "high_s": step_s * math.exp(reach)}
    return row.model_copy(update=ends)


def _noise_scale(given: float | None, rows: Sequence[Row], workload: str) -> Estimate | None:
    if given is not None:
        return Estimate(value=given, low=given, high=given, n=1)
    return noise_scale_of_workload(rows, workload)


def _with_time_to_loss(
    row: ProjectedRow, plain: tuple[float, int] | None, scale: Estimate | None
) -> ProjectedRow:
    """Return a row with what it does to the time to a loss, where baseline and noise are known."""
    if plain is None or scale is None or row.throughput is None:
        return row
    plain_s, batch = plain
    slowest, fastest = (row.global_batch / s if s else None for s in (row.high_s, row.low_s))
    found = time_to_loss(
        Training(row.global_batch, row.throughput, slowest, fastest),
        Training(batch, batch / plain_s),
        scale,
    )
    return row.model_copy(
        update={
            "noise_scale": scale,
            "statistical_efficiency": found.statistical_efficiency,
            "speedup_to_loss": found.speedup,
            "speedup_to_loss_low": found.low,
            "speedup_to_loss_high": found.high,
        }
    )
