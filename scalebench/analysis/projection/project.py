"""Sizes that were not measured: a run's cases, projected to other numbers of ranks.

A projection starts from the strategy at N=1 and from the links as the run calibrated them, or
from a topology with nominal links. Its interval holds how far the model was off where it could be
compared with a measurement, once more for every doubling, and what the link is less certain than
there: its own interval widens with every doubling beyond what was calibrated.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from scalebench.analysis.projection import scores
from scalebench.analysis.projection.from_logs import cases_at_one, project_logs, start_of
from scalebench.analysis.projection.recovery import (
    MeasuredShard,
    NothingToProject,
    ProjectedRow,
    Projection,
)
from scalebench.analysis.race import (
    Training,
    noise_scale_of_workload,
    time_to_loss,
)
from scalebench.analysis.rows.at_one_rank import AtOneRank, PipelineAtOneRank, step_at_one_rank
from scalebench.analysis.rows.launches import Context, Fields, Unavailable, grouped
from scalebench.analysis.run import StoredRun
from scalebench.analysis.summarise import summarise
from scalebench.costmodel.links.fitted import LinkModel, LinkTimes, NoFit
from scalebench.costmodel.links.profile import LinkProfile
from scalebench.costmodel.links.topology import Topology
from scalebench.costmodel.step import PredictedStep
from scalebench.costmodel.what_if import AS_MEASURED, WhatIf
from scalebench.errors import UsageError
from scalebench.records.summary import Row, RowKey, Summary, baseline_of, key_of
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


def contention_notes(found: Sequence[MeasuredContention]) -> tuple[str, ...]:
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


def _why_none(refusals: Mapping[str, str]) -> str:
    """Say why no case (key) can be projected; a reason that all share stands once."""
    if len(reasons := set(refusals.values())) == 1:
        return reasons.pop()
    told = "; ".join(f"{case}: {why}" for case, why in refusals.items())
    return told or "no strategy was measured at N=1"


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
    _check(run, world_sizes, topology, what_if, noise_scale)
    summary = summary or summarise(run)
    if run.imported is not None:
        return _of_logs(run, summary, world_sizes, topology, what_if, profile)
    compared = scores.compared_rows(summary.rows)
    links = _links(run, topology, profile, what_if)
    own_links = Context.link_of(run) if topology is None and profile is None else None
    measured = {(shard.suite, shard.case, shard.world_size): shard for shard in shards}
    rows: list[ProjectedRow] = []
    refusals: dict[str, str] = {}
    contentions: list[MeasuredContention] = []
    table = grouped(run)
    starts = [start_of(one, table) for one in cases_at_one(run)]
    for one in starts:
        cell = one.cell
        try:
            bare = step_at_one_rank(one.base)
        except Unavailable as reason:
            refusals[cell.case] = str(reason)
            continue
        contended = contention_of_case(summary.rows, cell)
        if contended is not None:
            bare = replace(bare, contention=contended.factor)
            contentions.append(contended)
        plain = _plain_step(summary.rows, cell.row_key)
        scale = (
            noise_scale_of_workload(summary.rows, cell.workload.name)
            if noise_scale is None
            else Estimate(value=noise_scale, low=noise_scale, high=noise_scale, n=1)
        )
        for world_size in world_sizes:
            there = one.cell_at(world_size)
            place = {"suite": cell.suite, "case": cell.case, "world_size": world_size}
            if isinstance(there, str):
                batches = {"global_batch": cell.global_batch, "rank_batch": 0}
                rows.append(ProjectedRow(**place, **batches, reason=there))
                continue
            shard = measured.get((cell.suite, cell.case, world_size))
            batches = {"global_batch": there.global_batch, "rank_batch": there.rank_batch}
            try:
                step = _predicted(there, bare, links, what_if, shard, own_links)
            except NoFit as reason:
                fields: Fields = {"reason": str(reason)}
            else:
                fields = _of_step(there, step, plain)
                fields |= _interval(step, bare, compared, topology, world_size)
                fields |= _time_to_loss(there, fields, plain, scale)
            rows.append(ProjectedRow(**place, **batches, **fields, share=shard))
    if not rows:
        raise NothingToProject(f"{run.paths.root} supports no projection: {_why_none(refusals)}.")
    return Projection(
        run_id=run.info.run_id,
        assumptions=(
            _links_note(topology, profile),
            *dict.fromkeys(one.assumption for one in starts if one.assumption),
            *what_if.described(),
            *contention_notes(contentions),
        ),
        typical_error=scores.typical_error(compared),
        num_scored=len(compared),
        rows=tuple(rows),
    )


def _check(
    run: StoredRun,
    world_sizes: Sequence[int],
    topology: Topology | None,
    what_if: WhatIf,
    noise_scale: float | None,
) -> None:
    changes = replace(what_if, hierarchical=False).described()
    changes += [] if noise_scale is None else [f"a noise scale of {noise_scale:g}"]
    if run.imported is not None and changes:
        raise UsageError(
            f"{run.paths.root} was read from logs, which do not say what computation and "
            f"communication take. Leave out: {', '.join(changes)}."
        )
    below = [n for n in world_sizes if n < 2]
    if below:
        raise UsageError(
            f"--gpus {below[0]}: a projection is for 2 ranks or more; N=1 is measured."
        )
    if what_if.hierarchical and topology is None:
        raise UsageError("--hierarchical needs --topology, which says which ranks share a node.")


def _of_logs(
    run: StoredRun,
    summary: Summary,
    world_sizes: Sequence[int],
    topology: Topology | None,
    what_if: WhatIf,
    profile: LinkProfile | None,
) -> Projection:
    if topology is None and profile is None:
        return project_logs(run, summary, world_sizes)
    links = _links(run, topology, profile, what_if)
    return project_logs(run, summary, world_sizes, links, _links_note(topology, profile))


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


def _links_note(topology: Topology | None, profile: LinkProfile | None) -> str:
    if topology is not None:
        return "nominal links of the topology"
    if profile is not None:
        return f"links as calibrated {profile.created[:10]} ({profile.backend})"
    return "links as this run calibrated them"


def _plain_step(rows: Sequence[Row], key: RowKey) -> tuple[float, int] | None:
    """Return step and batch of a row's plain baseline, or None."""
    row = next((row for row in rows if key_of(row) == key), None)
    baseline = baseline_of(row, rows) if row is not None else None
    if baseline is None or baseline.step_s is None:
        return None
    return baseline.step_s.value, baseline.rank_batch


def _predicted(
    cell: Cell,
    bare: AtOneRank,
    links: LinkTimes,
    what_if: WhatIf,
    shard: MeasuredShard | None,
    own_links: LinkModel | str | None,
) -> PredictedStep:
    """Predict a cell; raises NoFit."""
    parts = what_if.microbatches if isinstance(bare, PipelineAtOneRank) else None
    parts = parts or cell.strategy.num_parts(cell.world_size) // cell.num_shards
    if cell.rank_batch % parts:
        raise NoFit(f"{cell.rank_batch} samples cannot be split into {parts} microbatches")
    if isinstance(bare, PipelineAtOneRank) and isinstance(own_links, LinkModel):
        bare = bare.played_over(own_links, cell)
    return bare.predict(cell, links, what_if, shard.step_s if shard else None)


def _of_step(cell: Cell, step: PredictedStep, plain: tuple[float, int] | None) -> Fields:
    found: Fields = {
        "step_s": step.step_s,
        "throughput": cell.global_batch / step.step_s,
        "bubble_s": step.bubble_s,
        "exposed_transfer_s": step.stalled_s,
        "calibrated_world_sizes": step.world_sizes,
        "outside": step.outside,
    }
    if plain is None:
        return found
    ideal_s = plain[0] * cell.global_batch / cell.world_size / plain[1]
    return found | {
        "efficiency": ideal_s / step.step_s,
        "ideal_s": ideal_s,
        "compute_inflation_s": step.computing_s - step.bubble_s - ideal_s,
    }


def _interval(
    step: PredictedStep,
    bare: AtOneRank,
    compared: Sequence[scores.Compared],
    topology: Topology | None,
    world_size: int,
) -> Fields:
    """Return the ends of the step's interval; or why there is none."""
    if topology is not None:
        return {"interval_reason": "the links are nominal, not measured"}
    doublings = max(1.0, math.log2(world_size / max(step.world_sizes, default=1)))
    known = scores.known_of_step(step, bare.spread, bare.num_launches)
    reach = scores.half_width(known, compared, doublings)
    if reach is None:
        why = "no prediction of this run could be compared with a measurement"
        return {"interval_reason": why}
    return {"low_s": step.step_s * math.exp(-reach), "high_s": step.step_s * math.exp(reach)}


def _time_to_loss(
    cell: Cell, step: Fields, plain: tuple[float, int] | None, scale: Estimate | None
) -> Fields:
    """Return what a step does to the time to a loss, where baseline and noise are known."""
    if plain is None or scale is None:
        return {}
    plain_s, batch = plain
    ends = (step.get(name) for name in ("high_s", "low_s"))
    slowest, fastest = (cell.global_batch / end if end else None for end in ends)
    found = time_to_loss(
        Training(cell.global_batch, step["throughput"], slowest, fastest),
        Training(batch, batch / plain_s),
        scale,
    )
    return {
        "noise_scale": scale,
        "statistical_efficiency": found.statistical_efficiency,
        "speedup_to_loss": found.speedup,
        "speedup_to_loss_low": found.low,
        "speedup_to_loss_high": found.high,
    }
