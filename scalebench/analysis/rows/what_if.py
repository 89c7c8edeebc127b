"""What the cost model says of a row with one thing changed: buckets, gradients, the link.

Predicted in the same way as the row itself, so that the two predictions can be compared; what
the model gets wrong about the row it largely gets wrong about both.
"""

from collections.abc import Callable, Iterator

from scalebench.costmodel.links.times import LinkModel, LinkTimes, NoFit
from scalebench.costmodel.step import PredictedStep
from scalebench.costmodel.what_if import WhatIf
from scalebench.records.rows.prediction import ChangedStep
from scalebench.spec import Cell, Compressed, Ddp, Fsdp, Grouped, Pipeline, Strategy

BUCKETS_MB = (0.25, 1.0, 4.0, 25.0, 100.0)
"""Sizes of DDP's buckets that are tried, MiB."""

FASTER = (2.0, 4.0)
"""Times the bandwidth."""


Predict = Callable[[LinkTimes, WhatIf], PredictedStep]
"""Link and change → the row's step; raises NoFit."""


def what_ifs(
    cell: Cell, predict: Predict, link: LinkModel, predicted: PredictedStep
) -> list[ChangedStep]:
    """Predict a row with one thing changed at a time; changes that no fit supports are left out.

    Args:
        cell: Of the row.
        predict: Predicts its step.
        link: As calibrated.
        predicted: The row's own prediction.
    """
    found = []
    for what_if in _changes(cell, predicted):
        try:
            step = predict(link.faster(what_if.times_bandwidth), what_if)
        except NoFit:
            continue
        found.append(
            ChangedStep(
                change=", ".join(what_if.told()),
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
    elif not isinstance(strategy, Compressed | Grouped) and not _has_narrow_gradients(strategy):
        yield WhatIf(gradient_bits=16)
    for times in FASTER:
        yield WhatIf(times_bandwidth=times)


def _has_narrow_gradients(strategy: Strategy) -> bool:
    return isinstance(strategy, Fsdp) and strategy.reduce_dtype != "float32"
