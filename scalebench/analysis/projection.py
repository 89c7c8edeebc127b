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
    PREDICTION_CONFIDENCE,
    Compared,
    half_width,
    known_of_row,
    known_of_step,
    typical_error,
    variance_at_one_rank,
    variance_of_link,
)
from scalebench.analysis.prediction_scores import predicted_rows
from scalebench.analysis.recovery_projection import ProjectedRecovery
from scalebench.analysis.rows.fields import Unavailable
from scalebench.analysis.rows.launches import Launches, Table, grouped
from scalebench.analysis.rows.prediction import AtOneRank, PipelineAtOneRank, step_at_one_rank
from scalebench.analysis.rows.prediction_base import prediction_base
from scalebench.analysis.run import StoredRun
from scalebench.analysis.summarise import summarise
from scalebench.costmodel.links.profile import LinkProfile
from scalebench.costmodel.links.times import LinkModel, LinkTimes, NoFit
from scalebench.costmodel.links.topology import Topology
from scalebench.costmodel.step import PredictedStep
from scalebench.costmodel.what_if import AS_MEASURED, WhatIf
from scalebench.errors import ExitCode, ScalebenchError, UsageError
from scalebench.records.base import Record
from scalebench.records.baseline import baseline_of, key_of
from scalebench.records.summary import Row, RowKey, Summary
from scalebench.spec import Cell, Context, Expert, Mesh, Tensor, expert_groups
from scalebench.spec.context_plans import context_plan_of, why_whole
from scalebench.spec.experts import why_no_experts
from scalebench.spec.mesh_plans import why_no_mesh_of
from scalebench.spec.tensor_plans import tensor_plan_of, why_undivided
from scalebench.stats import Estimate, sum_variances


class NothingToProject(ScalebenchError):
    """A run that supports no projection."""

    exit_code = ExitCode.INCONCLUSIVE


class MeasuredShard(Record):
    """What one rank's shard of a job takes by itself, measured without the other ranks.

    Attributes:
        step_s: Its step, no communication in it, seconds; null: see ``reason``.
        peak_memory_bytes: The peak of its tensors.
    """

    suite: str
    case: str
    world_size: int
    step_s: float | None = None
    peak_memory_bytes: int | None = None
    reason: str | None = None


class ProjectedRow(Record):
    """One case at one number of ranks.

    Attributes:
        step_s: Predicted, seconds; null: see ``reason``.
        low_s: Lower end of the prediction interval; null: see ``interval_reason``.
        high_s: Upper end, likewise.
        throughput: Samples per second of the job.
        efficiency: Against the plain model; null: the run has no plain baseline.
        ideal_s: Time of a rank's share of the plain model's step.
        compute_inflation_s: What computing takes longer than that: the wrapper, and a smaller
            batch.
        bubble_s: Idle by the schedule of a pipeline.
        exposed_transfer_s: Communication that nothing hides. With the three before it sums to the
            step; waits, stalls and contention are not predicted.
        calibrated_world_sizes: Where the link was measured; empty: it is nominal.
        outside: Sizes at which a line of the link was continued beyond its support, in words.
        share: A rank's shard as it was measured here; null: the line through what N=1 measured
            stands for it.
        noise_scale: Gradient noise scale of the workload, samples; null: neither given nor
            measured by a race of the run.
        statistical_efficiency: By the noise scale: samples to a loss that the plain model needs on
            one rank over samples that this needs, each batch at its best learning rate.
        speedup_to_loss: Seconds to a loss that the plain model needs on one rank over seconds that
            this needs.
        speedup_to_loss_low: The same with step and noise scale at the worse ends of their
            intervals; null: one of them has none.
        speedup_to_loss_high: Likewise, at the better ends.
    """

    suite: str
    case: str
    world_size: int
    global_batch: int
    rank_batch: int
    step_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    confidence: float = PREDICTION_CONFIDENCE
    interval_reason: str | None = None
    throughput: float | None = None
    efficiency: float | None = None
    ideal_s: float | None = None
    compute_inflation_s: float | None = None
    bubble_s: float | None = None
    exposed_transfer_s: float | None = None
    calibrated_world_sizes: tuple[int, ...] = ()
    outside: tuple[str, ...] = ()
    reason: str | None = None
    share: MeasuredShard | None = None
    noise_scale: Estimate | None = None
    statistical_efficiency: float | None = None
    speedup_to_loss: float | None = None
    speedup_to_loss_low: float | None = None
    speedup_to_loss_high: float | None = None


class Projection(Record):
    """All projected rows of a run.

    Attributes:
        assumptions: What is taken for granted, in words.
        typical_error: Root mean square of the logarithm of predicted over measured step, of rows
            that were predicted without links of so many ranks if there are such; null: nothing
            could be compared with a measurement.
        num_scored: How many rows that rests on.
        recovery: What failures leave of the time; empty: no failure rate was given.
    """

    format: str = "scalebench.projection/1"
    run_id: str
    assumptions: tuple[str, ...]
    typical_error: float | None
    num_scored: int
    rows: tuple[ProjectedRow, ...]
    recovery: tuple[ProjectedRecovery, ...] = ()

    @classmethod
    def without_steps(cls, run_id: str, reason: str) -> "Projection":
        """Return a projection of no steps, with the reason among its assumptions."""
        return cls(run_id=run_id, assumptions=(reason,), typical_error=None, num_scored=0, rows=())


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
    measured = {(shard.suite, shard.case, shard.world_size): shard for shard in shards}
    rows: list[ProjectedRow] = []
    refusals: dict[str, str] = {}
    contentions: list[MeasuredContention] = []
    table = grouped(run)
    starts = [_start_of(one, table) for one in cases_at_one(run)]
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
            predicted = _predicted(there, bare, links, what_if, shard)
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
            *_told_contention(contentions),
        ),
        typical_error=typical_error(scores),
        num_scored=len(scores),
        rows=tuple(rows),
    )


class _Start(NamedTuple):
    """Where a case's projection starts.

    Attributes:
        cell: The case at N=1, where batches are scaled from.
        base: The launches that show what a rank computes and sends; None: there are none.
    """

    cell: Cell
    base: Launches | None

    @property
    def smallest(self) -> int:
        """The number of ranks of the base."""
        return 1 if self.base is None else self.base.cell.world_size

    @property
    def assumption(self) -> str:
        """What that takes for granted, in words; empty: nothing."""
        return f"started from N={self.smallest}, not from N=1" if self.smallest > 1 else ""

    def cell_at(self, world_size: int) -> Cell | str:
        """Return the case at another number of ranks; or why it is not projected."""
        if world_size <= self.smallest > 1:
            return f"the projection starts from N={self.smallest}: N=1 does not show what is sent"
        return cell_at(self.cell, world_size)


def _start_of(one: Launches, table: Table) -> _Start:
    """Return where a case's projection starts: N=1, whose own launch may have failed, or later."""
    base = prediction_base(one, table)
    if base is None or base.cell.world_size == 1:
        return _Start(one.cell, base)
    batch = base.cell.rank_batch if base.cell.scaling == "weak" else base.cell.global_batch
    changes = {"world_size": 1, "global_batch": batch, "rank_batch": batch}
    return _Start(base.cell.model_copy(update=changes), base)


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


def _told_contention(found: Sequence[MeasuredContention]) -> tuple[str, ...]:
    if not found:
        return ("no waiting, no stalls, no contention",)
    sizes = sorted({one.world_size for one in found})
    low, high = (100 * (f(one.factor for one in found) - 1) for f in (min, max))
    factors = f"{low:+.1f} %" if f"{low:.1f}" == f"{high:.1f}" else f"{low:+.1f} to {high:+.1f} %"
    return (
        "no waiting, no stalls",
        f"contention as measured at N = {' and '.join(map(str, sizes))} ({factors})",
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


def cases_at_one(run: StoredRun) -> list[Launches]:
    """Return every case but the plain ones, at N=1."""
    return [
        launches
        for (_, _, world_size), launches in grouped(run).items()
        if world_size == 1 and launches.cell.strategy.kind != "plain"
    ]


def _plain_step(rows: Sequence[Row], key: RowKey) -> tuple[float, int] | None:
    """Return step and batch of a row's plain baseline, or None."""
    row = next((row for row in rows if key_of(row) == key), None)
    baseline = baseline_of(row, rows) if row is not None else None
    if baseline is None or baseline.step_s is None:
        return None
    return baseline.step_s.value, baseline.rank_batch


def compared_rows(rows: Sequence[Row]) -> list[Compared]:
    """Return the rows that the model was compared with: where it knew least, if anywhere."""
    scored = predicted_rows(rows)
    return [one for one in map(_without_its_links, scored) if one] or [
        Compared(math.log1p(row.prediction_error or 0.0), known_of_row(step_s, row.prediction))
        for row in scored
        if row.prediction is not None and (step_s := row.predicted_step_s) is not None
    ]


def _without_its_links(row: Row) -> Compared | None:
    """Return a row as it was predicted from links of fewer ranks; None: it was not."""
    told = row.prediction
    blind = told.left_out if told is not None else None
    if told is None or blind is None or blind.prediction_error is None:
        return None
    launches = variance_at_one_rank(told.launch_spread, told.launch_dof)
    step_s, high_s = blind.predicted_step_s, blind.link_high_s
    if step_s is None or high_s is None:
        return Compared(math.log1p(blind.prediction_error), launches)
    link = variance_of_link(step_s, high_s, told.link_dof)
    return Compared(math.log1p(blind.prediction_error), sum_variances([launches, link]))


def cell_at(cell: Cell, world_size: int) -> Cell | str:
    """Return a case's cell at another number of ranks; or why there is no such job.

    Where the batch cannot be divided, the cell is that of the rank with the most samples.
    """
    batch, shards = cell.rank_batch, cell.strategy.num_shards(world_size)
    whole = batch * world_size if cell.scaling == "weak" else batch
    if shards > whole:
        return (
            f"strong scaling: a global batch of {batch} has no sample for each of "
            f"{shards} ranks; measure with a larger --batch-size, or with --scaling weak"
        )
    cannot = cell.strategy.why_not(cell.device, world_size)
    experts = expert_groups(cell.strategy)
    if cannot is None and experts is not None:
        cannot = why_no_experts(Expert(size=experts.size), cell.workload, world_size)
    elif cannot is None and isinstance(cell.strategy, Mesh):
        plans = tensor_plan_of(cell.workload), context_plan_of(cell.workload)
        if None not in plans:  # of a user's own workload its shard tells
            cannot = why_no_mesh_of(cell.strategy, cell.workload, world_size)
    elif cannot is None and isinstance(cell.strategy, Tensor):
        plan = tensor_plan_of(cell.workload)  # of a user's own workload its shard tells
        name = cell.workload.name
        cannot = why_undivided(cell.strategy, name, plan, world_size) if plan is not None else None
    if cannot is None and isinstance(cell.strategy, Context):
        part = context_plan_of(cell.workload)
        name = cell.workload.name
        cannot = why_whole(cell.strategy, name, part, world_size) if part is not None else None
    if cannot is not None:
        return cannot
    changes = {"world_size": world_size, "global_batch": whole, "rank_batch": -(-whole // shards)}
    return cell.model_copy(update=changes)


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
) -> PredictedStep | str:
    parts = what_if.microbatches if isinstance(bare, PipelineAtOneRank) else None
    parts = parts or cell.strategy.num_parts(cell.world_size) // cell.num_shards
    if cell.rank_batch % parts:
        return f"{cell.rank_batch} samples cannot be split into {parts} microbatches"
    try:
        if isinstance(bare, PipelineAtOneRank):
            return bare.predict(cell, links, what_if)
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
