"""What the cost model says of a row, beside what was measured; never fitted on the row itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from scalebench.attribution import LaunchAttribution, attribute
from scalebench.costmodel.compressed_step import with_messages
from scalebench.costmodel.link_model import LinkModel, LinkTimes, NoFit
from scalebench.costmodel.pipeline_step import (
    PipelineShape,
    predict_pipeline,
    textbook_pipeline_s,
)
from scalebench.costmodel.sharded_step import with_sharding
from scalebench.costmodel.sharding import Groups, sharding_of
from scalebench.costmodel.step_model import PredictedStep, StepShape, predict_step
from scalebench.costmodel.what_if import AS_MEASURED, WhatIf
from scalebench.launches import launch_step_s
from scalebench.pipeline_shape import pipeline_shape_of
from scalebench.records import CellResult
from scalebench.row_compression import OF_TORCH, decoding_s, is_hidden
from scalebench.row_fields import RowFields
from scalebench.row_what_if import what_ifs
from scalebench.spec import Cell, Compressed, Fsdp, Fsdp1, Pipeline
from scalebench.step_shape import NoShape, shape_of
from scalebench.trace.matching import transfers

FIELDS = ("predicted_step_s", "prediction_error", "prediction")


@dataclass(frozen=True)
class Bare:
    """A strategy at N=1, from which its other sizes are predicted.

    Attributes:
        shape: Of its step.
        spread: Standard error over its launches of the logarithm of the step; 0 for one.
        groups: Parameters that a sharded strategy gathers together; None: it is not sharded.
        decode_s: Decoding one rank's messages, seconds per step; None: nothing is compressed.
    """

    shape: StepShape
    spread: float
    groups: Groups | None = None
    decode_s: float | None = None

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
        share_s: float | None = None,
    ) -> PredictedStep:
        """Predict a cell.

        Args:
            cell: At any number of ranks.
            link: What operations take.
            what_if: What is changed.
            share_s: The computation of a rank's share, where it was measured, seconds.

        Raises:
            NoFit: Nothing tells what an operation takes.
        """
        shape = what_if.shape(self.at(cell, cell.world_size))
        if share_s is not None:
            shape = shape.lasting(share_s, cell.rank_batch)
        return predict_step(shape, link, cell.world_size, cell.rank_batch)

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
class BarePipeline:
    """A pipeline at N=1, from which its other sizes are predicted; see `Bare`."""

    shape: PipelineShape
    spread: float

    def predict(self, cell: Cell, link: LinkTimes, what_if: WhatIf = AS_MEASURED) -> PredictedStep:
        """Predict a cell; raises NoFit."""
        shape = what_if.pipeline(self.shape.with_batch(cell.rank_batch))
        return predict_pipeline(shape, link, cell.world_size)

    def textbook_s(self, cell: Cell, *_: object) -> float:
        """Return the step by the law of the bubble alone, seconds."""
        return textbook_pipeline_s(self.shape.with_batch(cell.rank_batch), cell.world_size)


def bare_step(good: Mapping[int, CellResult]) -> Bare | BarePipeline | str:
    """Return what a strategy does at N=1, or why that cannot be told."""
    if not good:
        return "no launch of the strategy at N=1 went well"
    first = next(iter(good.values()))
    strategy = first.cell.strategy
    is_sharded = isinstance(strategy, Fsdp | Fsdp1)
    if is_sharded and first.cell.device == "cuda":
        return "on a GPU gathers run ahead of the computation; when, is not known from N=1"
    if isinstance(strategy, Compressed) and is_hidden(strategy):
        return OF_TORCH
    launches = [found for result in good.values() if (found := attribute(result))]
    logs = np.log([launch_step_s(launch.result) for launch in launches])
    spread = float(logs.std(ddof=1)) / len(logs) ** 0.5 if len(logs) > 1 else 0.0
    try:
        if isinstance(strategy, Pipeline):
            return BarePipeline(pipeline_shape_of(strategy, launches), spread)
        silent = is_sharded or (isinstance(strategy, Compressed) and strategy.method == "noop")
        shape = shape_of(launches, may_be_silent=silent)
    except NoShape as reason:
        return str(reason)
    groups = _groups(first) if is_sharded else None
    decode_s = decoding_s(launches) if isinstance(strategy, Compressed) else None
    return Bare(shape, spread, groups, decode_s)


def _groups(result: CellResult) -> Groups:
    rank = result.ranks[0]
    return Groups.of(rank.facts.get("group_elements"), rank.num_parameters or 0)


def predict_row(
    cell: Cell,
    good: Mapping[int, CellResult],
    wrapped: Mapping[int, CellResult],
    link: LinkModel | str,
    measured_s: float | None,
) -> RowFields:
    """Predict a row from the strategy at N=1 and the calibrated link.

    Args:
        cell: Of the row.
        good: Its launches, to hold single operations against.
        wrapped: The strategy's launches at N=1.
        link: Or why none was calibrated.
        measured_s: Its step; None: there is none to hold the prediction against.
    """
    row = RowFields()
    try:
        bare, model = _start(cell, wrapped, link)
        predicted, left_out = _predictions(cell, bare, model)
    except _Unpredictable as reason:
        row.reasons = dict.fromkeys(FIELDS, str(reason))
        return row
    row.values["predicted_step_s"] = predicted.step_s
    error = None if measured_s is None else predicted.step_s / measured_s - 1
    row.set("prediction_error", error, "there is no measured step to hold it against")
    row.values["prediction"] = {
        "computing_s": predicted.computing_s,
        "bubble_s": predicted.bubble_s,
        "exposed_comm_s": predicted.stalled_s,
        "link_low_s": predicted.low_s,
        "link_high_s": predicted.high_s,
        "link_world_sizes": list(predicted.world_sizes),
        "launch_spread": bare.spread,
        "outside": list(predicted.outside),
        "operations": _operations(predicted, good),
        "left_out": _left_out(left_out, measured_s),
        "what_if": what_ifs(cell, partial(bare.predict, cell), model, predicted),
    }
    return row


class _Unpredictable(Exception):
    """A row without a prediction; the text says why."""


def _start(
    cell: Cell, wrapped: Mapping[int, CellResult], link: LinkModel | str
) -> tuple[Bare | BarePipeline, LinkModel]:
    """Return what a row is predicted from; raises _Unpredictable."""
    if cell.strategy.kind == "plain":
        raise _Unpredictable("the plain model communicates with nobody")
    if cell.world_size == 1:
        raise _Unpredictable("the prediction starts from the strategy at N=1")
    if cell.oversubscribed:
        raise _Unpredictable("ranks that share a device: the model has no term for that")
    if isinstance(link, str):
        raise _Unpredictable(link)
    bare = bare_step(wrapped)
    if isinstance(bare, str):
        raise _Unpredictable(bare)
    return bare, link


def _predictions(
    cell: Cell, bare: Bare | BarePipeline, link: LinkModel
) -> tuple[PredictedStep, "_ByFewer | str"]:
    """Return the prediction by the link as calibrated, and by what is known of fewer ranks."""
    try:
        predicted = bare.predict(cell, link.time)
    except NoFit as reason:
        raise _Unpredictable(str(reason)) from reason
    below = link.below(cell.world_size)
    try:
        step = bare.predict(cell, below.time)
        return predicted, _ByFewer(step, bare.textbook_s(cell, step, below))
    except NoFit:
        return predicted, "no link was calibrated at fewer ranks"


@dataclass(frozen=True)
class _ByFewer:
    """A row as it would have been predicted before there were so many ranks."""

    step: PredictedStep
    textbook_s: float


def _left_out(found: _ByFewer | str, measured_s: float | None) -> dict[str, Any]:
    """Return what was predicted without any knowledge of this many ranks, or of more."""
    if isinstance(found, str):
        return {"predicted_step_s": None, "prediction_error": None, "reason": found}
    predicted = found.step
    return {
        "predicted_step_s": predicted.step_s,
        "prediction_error": None if measured_s is None else predicted.step_s / measured_s - 1,
        "textbook_step_s": found.textbook_s,
        "link_low_s": predicted.low_s,
        "link_high_s": predicted.high_s,
        "link_world_sizes": list(predicted.world_sizes),
    }


def _operations(predicted: PredictedStep, good: Mapping[int, CellResult]) -> list[dict[str, Any]]:
    """Return every operation of the step, predicted and measured: transfer without waiting."""
    launches = [found for result in good.values() if (found := attribute(result))]
    seen: dict[tuple[str, int], int] = {}
    told = []
    for request, time in zip(predicted.requests, predicted.times, strict=True):
        kind = (request.op, request.size_bytes)
        ordinal = seen.get(kind, 0)
        seen[kind] = ordinal + 1
        told.append(
            {
                "op": request.op,
                "size_bytes": request.size_bytes,
                "ready_s": request.ready_s,
                "predicted_s": time.time_s,
                "low_s": time.low_s,
                "high_s": time.high_s,
                "measured_s": _measured(launches, kind, ordinal),
            }
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
