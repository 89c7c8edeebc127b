"""What the cost model predicts for a row, and its error; never fitted on the row itself.

And the row with one thing changed: buckets, gradients, the link. That is predicted in the same
way, so that the two can be compared; what the model gets wrong about one it largely gets wrong
about both.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from scalebench.analysis.attribution import LaunchAttribution
from scalebench.analysis.rows.at_one_rank import (
    AtOneRank,
    PipelineAtOneRank,
    prediction_base,
    step_at_one_rank,
)
from scalebench.analysis.rows.launches import Context, Fields, Launches, Unavailable, known, null
from scalebench.analysis.rows.strategies import slowest_rank
from scalebench.costmodel.links.fitted import LinkModel, LinkTimes, NoFit
from scalebench.costmodel.step import PredictedStep
from scalebench.costmodel.what_if import WhatIf
from scalebench.grouping import by_key
from scalebench.records.rows.steps import (
    ChangedStep,
    PredictedOperation,
    Prediction,
    PredictionFromFewer,
)
from scalebench.spec import Cell, Compressed, Ddp, Fsdp, Grouped, Pipeline, Script
from scalebench.trace.operations.matching import transfers

FIELDS = ("predicted_step_s", "prediction_error", "prediction")

IS_BASE = (
    "larger sizes are predicted from this one, the smallest that shows what the script sends: to "
    "predict it from itself would be no test"
)
SENDS_TOO_LITTLE = (
    "on one rank the script does not send what it sends among several: predictions start from N={n}"
)


BUCKETS_MB = (0.25, 1.0, 4.0, 25.0, 100.0)
"""Sizes of DDP's buckets that are tried, MiB."""

FASTER = (2.0, 4.0)
"""Times the bandwidth."""


Predict = Callable[[LinkTimes, WhatIf], PredictedStep]
"""Link and change → the row's step; raises NoFit."""


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
        run.ratios.slowdowns(row, baseline) if baseline else None,
    )


def predict_row(
    of_row: Launches,
    base: Launches | None,
    link: LinkModel | str,
    measured_s: float | None,
    contention: float | None = None,
    slowdowns: Sequence[float] | None = None,
) -> Fields:
    """Predict a row from the strategy at N=1, or a script's base, and the calibrated link.

    ``contention``: how much longer a plain step takes where so many ranks compute at once; None:
    not measured, and then the prediction has none. ``slowdowns``: the same of each rank.
    """
    cell = of_row.cell
    try:
        cell, contention = slowest_rank(cell, slowdowns) or (cell, contention)
        bare, model = _start(cell, base, link)
        bare = bare.with_shards(of_row.shards).played_over(model, cell)
        if contention is not None:
            bare = replace(bare, contention=contention)
        predicted = bare.predict(cell, model.time)
    except (Unavailable, NoFit) as reason:
        return null(FIELDS, reason)
    in_stages = isinstance(bare, PipelineAtOneRank)
    error = None if measured_s is None else predicted.step_s / measured_s - 1
    prediction = Prediction(
        base_world_size=bare.world_size,
        computing_s=predicted.computing_s,
        contention=None if in_stages and bare.longer_s is not None else contention,
        longer_s=bare.longer_s,
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
    cell: Cell, bare: AtOneRank, below: LinkModel, measured_s: float | None
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
    """Return every operation of the step, predicted and measured: transfer without waiting.

    What was measured is the median of the transfers that were matched; None: there are none.
    """
    transferred = by_key(
        ((one.kind, one.num_bytes, one.ordinal), one.transfer_s)
        for launch in launches
        if launch.not_apart is None
        for one in transfers(launch.traces, launch.clocks)
    )
    seen: dict[tuple[str, int], int] = {}
    told = []
    for request, time in zip(predicted.requests, predicted.times, strict=True):
        kind = (request.op, request.size_bytes)
        ordinal = seen.get(kind, 0)
        seen[kind] = ordinal + 1
        measured = transferred.get((*kind, ordinal))
        told.append(
            PredictedOperation(
                op=request.op,
                size_bytes=request.size_bytes,
                ready_s=request.ready_s,
                predicted_s=time.time_s,
                low_s=time.low_s,
                high_s=time.high_s,
                measured_s=float(np.median(measured)) if measured else None,
            )
        )
    return told


def what_ifs(
    cell: Cell, predict: Predict, link: LinkModel, predicted: PredictedStep
) -> list[ChangedStep]:
    """Predict a row with one thing changed at a time; changes that no fit supports are left out."""
    found = []
    for what_if in _changes(cell, predicted):
        try:
            step = predict(link.faster(what_if.times_bandwidth), what_if)
        except NoFit:
            continue
        found.append(
            ChangedStep(
                change=", ".join(what_if.described()),
                bucket_mb=what_if.bucket_mb,
                gradient_bits=what_if.gradient_bits,
                microbatches=what_if.microbatches,
                times_bandwidth=what_if.times_bandwidth,
                step_s=step.step_s,
                gain=1 - step.step_s / predicted.step_s,
            )
        )
    return found


def _changes(cell: Cell, predicted: PredictedStep) -> Iterator[WhatIf]:
    strategy = cell.strategy
    if isinstance(strategy, Ddp):
        total = sum(r.size_bytes for r in predicted.requests if r.op == "all_reduce")
        smaller = [size for size in BUCKETS_MB if size * 2**20 < total]
        larger = [size for size in BUCKETS_MB if size * 2**20 >= total][:1]
        for size in (*smaller, *larger):
            if size != strategy.bucket_mb:
                yield WhatIf(bucket_mb=size)
    if isinstance(strategy, Pipeline):
        twice = 2 * strategy.microbatches
        if cell.rank_batch % twice == 0:
            yield WhatIf(microbatches=twice)
    elif not isinstance(strategy, Compressed | Grouped) and (
        not isinstance(strategy, Fsdp) or strategy.reduce_dtype == "float32"
    ):
        yield WhatIf(gradient_bits=16)
    for times in FASTER:
        yield WhatIf(times_bandwidth=times)
