"""What the cost model predicts for a row, and its error; never fitted on the row itself."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from scalebench.analysis.attribution import LaunchAttribution
from scalebench.analysis.pipeline_shape import pipeline_shape_of
from scalebench.analysis.rows.compression import OF_TORCH, decoding_s, is_unmarked
from scalebench.analysis.rows.context import Context
from scalebench.analysis.rows.fields import Fields, Unavailable, known, null
from scalebench.analysis.rows.group_step import GroupAtOneRank, group_at_one_rank, step_alone
from scalebench.analysis.rows.launches import Launches
from scalebench.analysis.rows.played import longer_beside_work_s, nearest_played
from scalebench.analysis.rows.prediction_base import prediction_base
from scalebench.analysis.rows.what_if import what_ifs
from scalebench.analysis.shape_among_ranks import shape_among_ranks
from scalebench.analysis.step_shape import shape_of
from scalebench.analysis.steps import launch_step_s
from scalebench.costmodel.compressed_step import with_messages
from scalebench.costmodel.frameworks import shards_with_fsdp2
from scalebench.costmodel.links.times import LinkModel, LinkTimes, NoFit
from scalebench.costmodel.pipelines.step import (
    PipelineShape,
    longer_than_modelled_s,
    predict_pipeline,
    textbook_pipeline_s,
)
from scalebench.costmodel.sharded_step import with_sharding
from scalebench.costmodel.sharding import Groups, sharding_of
from scalebench.costmodel.step import PredictedStep, StepShape, predict_step
from scalebench.costmodel.what_if import AS_MEASURED, WhatIf
from scalebench.records.probes import RehearsedPipeline
from scalebench.records.rows.prediction import (
    PredictedOperation,
    Prediction,
    PredictionFromFewer,
)
from scalebench.records.run import CellResult
from scalebench.spec import Cell, Compressed, Fsdp, Fsdp1, Grouped, Pipeline, Script
from scalebench.trace.matching import transfers

FIELDS = ("predicted_step_s", "prediction_error", "prediction")

IS_BASE = (
    "larger sizes are predicted from this one, the smallest that shows what the script sends: to "
    "predict it from itself would be no test"
)
SENDS_TOO_LITTLE = (
    "on one rank the script does not send what it sends among several: predictions start from N={n}"
)


@dataclass(frozen=True)
class StepAtOneRank:
    """A strategy at N=1, from which its other sizes are predicted.

    Of a script that sends nothing at N=1: at the smallest N that was measured, with its exposed
    communication taken out.

    Attributes:
        shape: Of its step.
        spread: Standard error over its launches of the logarithm of the step; 0 for one.
        num_launches: How many that rests on.
        groups: Parameters that a sharded strategy gathers together; None: it is not sharded.
        decode_s: Decoding one rank's messages, seconds per step; None: nothing is compressed.
        contention: How much longer a rank computes where others compute at the same time.
        shard_s: Step of a rank's shard alone, at the size in question, seconds; None: not measured,
            and the line through what N=1 measured stands for it.
        longer_s: What messages take longer beside work than the link says, seconds; None: no ranks
            played the step.
        world_size: The size at which all this was measured.
    """

    shape: StepShape
    spread: float
    num_launches: int
    groups: Groups | None = None
    decode_s: float | None = None
    contention: float = 1.0
    shard_s: float | None = None
    longer_s: float | None = None
    world_size: int = 1

    def played_over(self, link: LinkModel, cell: Cell) -> "StepAtOneRank":
        """Return this with what messages took beside work where ranks played the cell's step."""
        return replace(self, longer_s=longer_beside_work_s(link, cell))

    def with_shards(self, shards: Sequence[CellResult]) -> "StepAtOneRank":
        """Return this with the launches of the shard at the size in question."""
        alone = step_alone(shards)
        if alone is None:
            return self
        return replace(self, shard_s=alone.step_s, spread=alone.spread, num_launches=len(shards))

    def at(self, cell: Cell, world_size: int) -> StepShape:
        """Return the shape at a number of ranks; a sharded strategy sends nothing at N=1."""
        if self.decode_s is not None:
            return with_messages(self.shape, world_size, self.decode_s)
        if self.groups is None:
            return self.shape
        return with_sharding(self.shape, sharding_of(cell.strategy, world_size), self.groups)

    def predict(
        self,
        cell: Cell,
        link: LinkTimes,
        what_if: WhatIf = AS_MEASURED,
        shard_s: float | None = None,
    ) -> PredictedStep:
        """Predict a cell.

        Args:
            cell: At any number of ranks.
            link: What operations take.
            what_if: What is changed.
            shard_s: The computation of a rank's shard, where it was measured, seconds.

        Raises:
            NoFit: Nothing tells what an operation takes.
        """
        shape = self.shape_of(cell, what_if, shard_s).slowed(self.contention, cell.rank_batch)
        predicted = predict_step(shape, link, cell.world_size, cell.rank_batch)
        return predicted.longer(self.longer_s or 0.0)

    def shape_of(
        self, cell: Cell, what_if: WhatIf = AS_MEASURED, shard_s: float | None = None
    ) -> StepShape:
        """Return the shape of a cell's step on a rank that has the machine to itself."""
        shape = what_if.shape(self.at(cell, cell.world_size))
        alone_s = shard_s if shard_s is not None else self.shard_s
        if alone_s is not None:
            return shape.lasting(alone_s, cell.rank_batch)
        return shape.with_batch(cell.rank_batch)

    def textbook_s(self, cell: Cell, predicted: PredictedStep, link: LinkModel) -> float:
        """Return the simplest prediction there is, for comparison, seconds.

        The step at N=1 in proportion to the batch, and the bandwidth terms of all operations on
        top; nothing overlaps.
        """
        share = cell.rank_batch / self.shape.num_samples
        asked = predicted.requests
        terms = [link.bandwidth_term(r.op, cell.world_size, r.size_bytes) for r in asked]
        return share * self.shape.computing_s + sum(terms)


@dataclass(frozen=True)
class PipelineAtOneRank:
    """A pipeline at N=1, from which its other sizes are predicted; see `StepAtOneRank`."""

    shape: PipelineShape
    spread: float
    num_launches: int
    contention: float = 1.0

    def played_over(self, link: LinkModel, cell: Cell) -> "PipelineAtOneRank":
        """Return this with what ranks that played the cell's pipeline took longer for a step.

        At the nearest number of ranks at which they did; raises NoFit.
        """
        played = nearest_played(RehearsedPipeline, link, cell)
        longer_s = None if played is None else longer_than_modelled_s(played, link.time)
        return replace(self, shape=replace(self.shape, longer_s=longer_s))

    def predict(self, cell: Cell, link: LinkTimes, what_if: WhatIf = AS_MEASURED) -> PredictedStep:
        """Predict a cell; raises NoFit.

        Ranks that played the pipeline computed at once, so there is no contention on top.
        """
        factor = 1.0 if self.shape.longer_s is not None else self.contention
        shape = what_if.pipeline(self.shape.with_batch(cell.rank_batch).slowed(factor))
        return predict_pipeline(shape, link, cell.world_size)

    def textbook_s(self, cell: Cell, *_: object) -> float:
        """Return the step by the law of the bubble alone, seconds."""
        return textbook_pipeline_s(self.shape.with_batch(cell.rank_batch), cell.world_size)


AtOneRank = StepAtOneRank | PipelineAtOneRank | GroupAtOneRank


def step_at_one_rank(at_one: Launches | None) -> AtOneRank:
    """Return what a strategy does at N=1, or a script at its base; raises Unavailable."""
    if at_one is None or not at_one.good:
        raise Unavailable("no launch of the strategy at N=1 succeeded")
    if at_one.cell.world_size > 1:
        return _step_at_base(at_one)
    first = next(iter(at_one.good.values()))
    strategy = first.cell.strategy
    is_sharded = isinstance(strategy, Fsdp | Fsdp1) or shards_with_fsdp2(strategy)
    if is_sharded and first.cell.device == "cuda":
        raise Unavailable("on a GPU, gathers run ahead of the computation; N=1 does not show when")
    if isinstance(strategy, Compressed) and is_unmarked(strategy):
        raise Unavailable(OF_TORCH)
    if isinstance(strategy, Grouped):
        return group_at_one_rank(first)
    launches = list(at_one.attributed.values())
    spread = _spread(launches)
    if isinstance(strategy, Pipeline):
        return PipelineAtOneRank(pipeline_shape_of(strategy, launches), spread, len(launches))
    silent = is_sharded or (isinstance(strategy, Compressed) and strategy.method == "noop")
    shape = shape_of(launches, may_be_silent=silent)
    groups = _groups(first) if is_sharded else None
    decode_s = decoding_s(launches) if isinstance(strategy, Compressed) else None
    return StepAtOneRank(shape, spread, len(launches), groups, decode_s)


def _step_at_base(base: Launches) -> StepAtOneRank:
    """Return what a script computes at the smallest size that shows what it sends."""
    launches = list(base.attributed.values())
    return StepAtOneRank(
        shape_among_ranks(launches),
        _spread(launches),
        len(launches),
        world_size=base.cell.world_size,
    )


def _spread(launches: Sequence[LaunchAttribution]) -> float:
    """Return the standard error of the logarithm of the step over launches; 0 for one."""
    logs = np.log([launch_step_s(launch.result) for launch in launches])
    return float(logs.std(ddof=1)) / len(logs) ** 0.5 if len(logs) > 1 else 0.0


def _groups(result: CellResult) -> Groups:
    rank = result.ranks[0]
    return Groups.of(rank.facts.get("group_elements"), rank.num_parameters or 0)


def prediction_of_row(row: Launches, run: Context) -> Fields:
    """Predict a row from its base (mostly N=1), the run's own calibration, and contention."""
    baseline = run.baseline(row)
    contention = run.ratios.contention(row, baseline) if baseline else None
    return predict_row(
        row,
        prediction_base(row, run.table),
        run.link,
        row.step_s.value if row.step_s else None,
        contention.value if contention else None,
    )


def predict_row(
    of_row: Launches,
    base: Launches | None,
    link: LinkModel | str,
    measured_s: float | None,
    contention: float | None = None,
) -> Fields:
    """Predict a row from the strategy at N=1, or a script's base, and the calibrated link.

    Args:
        of_row: Its launches, to compare single operations with.
        base: The launches that it is predicted from; see `prediction_base`.
        link: Or why none was calibrated.
        measured_s: Its step; None: there is none to compare the prediction with.
        contention: How much longer a plain step takes where so many ranks compute at once; None:
            not measured, and then the prediction has none.
    """
    cell = of_row.cell
    try:
        bare, model = _start(cell, base, link)
        if not isinstance(bare, PipelineAtOneRank):
            bare = bare.with_shards(of_row.shards)
        bare = bare.played_over(model, cell)
        if contention is not None:
            bare = replace(bare, contention=contention)
        predicted = bare.predict(cell, model.time)
    except (Unavailable, NoFit) as reason:
        return null(FIELDS, reason)
    in_stages = isinstance(bare, PipelineAtOneRank)
    longer_s = bare.shape.longer_s if isinstance(bare, PipelineAtOneRank) else bare.longer_s
    error = None if measured_s is None else predicted.step_s / measured_s - 1
    prediction = Prediction(
        base_world_size=bare.world_size if isinstance(bare, StepAtOneRank) else 1,
        computing_s=predicted.computing_s,
        contention=None if in_stages and longer_s is not None else contention,
        longer_s=longer_s,
        bubble_s=predicted.bubble_s,
        exposed_comm_s=predicted.stalled_s,
        link_low_s=predicted.low_s,
        link_high_s=predicted.high_s,
        link_world_sizes=list(predicted.world_sizes),
        launch_spread=bare.spread,
        launch_dof=bare.num_launches - 1,
        link_dof=predicted.link_dof if math.isfinite(predicted.link_dof) else None,
        outside=list(predicted.outside),
        operations=_operations(predicted, list(of_row.attributed.values())),
        left_out=_left_out(cell, bare, model.below(cell.world_size), measured_s),
        what_if=what_ifs(cell, partial(bare.predict, cell), model, predicted),
    )
    return {
        "predicted_step_s": predicted.step_s,
        "prediction_error": known(error, "there is no measured step to compare it with"),
        "prediction": prediction,
    }


def _start(cell: Cell, base: Launches | None, link: LinkModel | str) -> tuple[AtOneRank, LinkModel]:
    """Return what a row is predicted from; raises Unavailable."""
    if cell.strategy.kind == "plain":
        raise Unavailable("the plain model does not communicate")
    size = base.cell.world_size if base is not None else 1
    if size > 1 and cell.world_size <= size:
        raise Unavailable(IS_BASE if cell.world_size == size else SENDS_TOO_LITTLE.format(n=size))
    if cell.world_size == 1:
        raise Unavailable("the prediction starts from the strategy at N=1")
    if cell.oversubscribed:
        raise Unavailable("the model does not cover ranks that share a device")
    at_base = step_at_one_rank(base) if isinstance(cell.strategy, Script) else None
    if isinstance(link, str):
        raise Unavailable(link)
    return at_base or step_at_one_rank(base), link


def _left_out(
    cell: Cell,
    bare: AtOneRank,
    below: LinkModel,
    measured_s: float | None,
) -> PredictionFromFewer:
    """Predict a row without any knowledge of this many ranks, or of more."""
    try:
        bare = bare.played_over(below, cell)
        predicted = bare.predict(cell, below.time)
        textbook_s = bare.textbook_s(cell, predicted, below)
    except NoFit:
        reason = "no link was calibrated at fewer ranks"
        return PredictionFromFewer(predicted_step_s=None, prediction_error=None, reason=reason)
    return PredictionFromFewer(
        predicted_step_s=predicted.step_s,
        prediction_error=None if measured_s is None else predicted.step_s / measured_s - 1,
        textbook_step_s=textbook_s,
        link_low_s=predicted.low_s,
        link_high_s=predicted.high_s,
        link_world_sizes=list(predicted.world_sizes),
    )


def _operations(
    predicted: PredictedStep, launches: Sequence[LaunchAttribution]
) -> list[PredictedOperation]:
    """Return every operation of the step, predicted and measured: transfer without waiting."""
    seen: dict[tuple[str, int], int] = {}
    told = []
    for request, time in zip(predicted.requests, predicted.times, strict=True):
        kind = (request.op, request.size_bytes)
        ordinal = seen.get(kind, 0)
        seen[kind] = ordinal + 1
        told.append(
            PredictedOperation(
                op=request.op,
                size_bytes=request.size_bytes,
                ready_s=request.ready_s,
                predicted_s=time.time_s,
                low_s=time.low_s,
                high_s=time.high_s,
                measured_s=_measured(launches, kind, ordinal),
            )
        )
    return told


def _measured(
    launches: Sequence[LaunchAttribution], kind: tuple[str, int], ordinal: int
) -> float | None:
    """Return the median transfer of one operation of the step; None: it was not matched."""
    found = [
        transfer.transfer_s
        for launch in launches
        if launch.not_apart is None
        for transfer in transfers(launch.traces, launch.clocks)
        if (transfer.kind, transfer.num_bytes) == kind and transfer.ordinal == ordinal
    ]
    return float(np.median(found)) if found else None
