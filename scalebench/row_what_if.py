"""What the cost model says of a row with one thing changed: buckets, gradients, the link.

Predicted in the same way as the row itself, so that the two predictions can be compared; what
the model gets wrong about the row it largely gets wrong about both.
"""

from collections.abc import Iterator
from typing import Any

from scalebench.costmodel.link_model import LinkModel, LinkTime, NoFit
from scalebench.costmodel.step_model import LinkTimes, StepShape, predict_step
from scalebench.costmodel.what_if import WhatIf
from scalebench.spec import Cell, Ddp, Fsdp

BUCKETS_MB = (0.25, 1.0, 4.0, 25.0, 100.0)
"""Sizes of DDP's buckets that are tried, MiB."""

FASTER = (2.0, 4.0)
"""Times the bandwidth."""


def what_ifs(
    cell: Cell, shape: StepShape, link: LinkModel, predicted_s: float
) -> list[dict[str, Any]]:
    """Predict a row with one thing changed at a time.

    Args:
        cell: Of the row.
        shape: Of its step, from N=1.
        link: As calibrated.
        predicted_s: The row's own prediction, seconds.

    Returns:
        For each change: ``change`` in words, ``bucket_mb``, ``gradient_bits``,
        ``times_bandwidth``, ``step_s``, and ``gain``, the part of the predicted step that it
        saves. Changes that no fit supports are left out.
    """
    found = []
    for what_if in _changes(cell, shape):
        try:
            step = predict_step(
                what_if.shape(shape),
                faster_link(link, what_if.times_bandwidth),
                cell.world_size,
                cell.rank_batch,
            )
        except NoFit:
            continue
        found.append(
            {
                "change": ", ".join(what_if.told()),
                "bucket_mb": what_if.bucket_mb,
                "gradient_bits": what_if.gradient_bits,
                "times_bandwidth": what_if.times_bandwidth,
                "step_s": step.step_s,
                "gain": 1 - step.step_s / predicted_s,
            }
        )
    return found


def _changes(cell: Cell, shape: StepShape) -> Iterator[WhatIf]:
    strategy = cell.strategy
    if isinstance(strategy, Ddp):
        total = sum(r.size_bytes for r in shape.requests if r.op == "all_reduce")
        smaller = [size for size in BUCKETS_MB if size * 2**20 < total]
        larger = [size for size in BUCKETS_MB if size * 2**20 >= total][:1]
        for size in (*smaller, *larger):
            if size != strategy.bucket_mb:
                yield WhatIf(bucket_mb=size)
    if not (isinstance(strategy, Fsdp) and strategy.reduce_dtype != "float32"):
        yield WhatIf(gradient_bits=16)
    for times in FASTER:
        yield WhatIf(times_bandwidth=times)


def faster_link(link: LinkModel, times: float) -> LinkTimes:
    """Return the link with so many times the bandwidth.

    Under α + D/B a link of k times the bandwidth treats D bytes as it did D/k.
    """

    def time(op: str, world_size: int, size_bytes: int) -> LinkTime:
        return link.time(op, world_size, max(1, round(size_bytes / times)))

    return time
