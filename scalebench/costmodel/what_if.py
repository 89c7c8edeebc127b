"""What if: the same step with other buckets, other gradients, a faster link."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scalebench.costmodel.pipelines.step import PipelineShape
from scalebench.costmodel.replay import CommRequest
from scalebench.costmodel.step import StepShape


@dataclass(frozen=True)
class WhatIf:
    """Changes to what was measured; as it stands, nothing is changed.

    Attributes:
        times_bandwidth: Every link carries so many times as much.
        gradient_bits: Bits of each gradient on the wire; None: as measured (32 for float32).
            What it costs to convert them is not counted.
        bucket_mb: Size of DDP's buckets in MiB; None: as measured.
        hierarchical: All-reduces are reduced inside the nodes first; needs a topology.
        microbatches: Of a pipeline; None: as measured.
    """

    times_bandwidth: float = 1.0
    gradient_bits: int | None = None
    bucket_mb: float | None = None
    hierarchical: bool = False
    microbatches: int | None = None

    def shape(self, shape: StepShape, measured_bits: int = 32) -> StepShape:
        """Return a step's shape with the changes that concern it."""
        changed = shape
        if self.bucket_mb is not None:
            changed = with_buckets(changed, self.bucket_mb * 2**20)
        if self.gradient_bits is not None:
            changed = _scaled(changed, self.gradient_bits / measured_bits)
        return changed

    def pipeline(self, shape: PipelineShape) -> PipelineShape:
        """Return a pipeline's shape with the changes that concern it."""
        return shape if self.microbatches is None else shape.with_microbatches(self.microbatches)

    def told(self) -> list[str]:
        """Say what was changed, in words."""
        parts = []
        if self.times_bandwidth != 1:
            parts.append(f"{self.times_bandwidth:g} times the bandwidth")
        if self.gradient_bits is not None:
            parts.append(f"gradients of {self.gradient_bits} bits, conversion not counted")
        if self.bucket_mb is not None:
            parts.append(f"buckets of {self.bucket_mb:g} MiB")
        if self.hierarchical:
            parts.append("hierarchical all-reduce")
        if self.microbatches is not None:
            parts.append(f"pipelines' batches in {self.microbatches} microbatches")
        return parts


AS_MEASURED = WhatIf()


def with_buckets(shape: StepShape, bucket_bytes: float) -> StepShape:
    """Return the step with its gradients in buckets of another size.

    Between the measured buckets gradients are taken to become ready at an even pace, from the
    beginning of backward, which is taken to be a third of the way (backward takes twice as long
    as forward). What is not an all-reduce of gradients stays as it is.
    """
    reduced = [r for r in shape.requests if _is_bucket(r, shape)]
    others = [r for r in shape.requests if not _is_bucket(r, shape)]
    if not reduced:
        return shape
    begin = min(shape.batch_s / 3, reduced[0].ready_s)
    moments = [begin, *(r.ready_s for r in reduced)]
    amounts = np.concatenate(([0], np.cumsum([r.size_bytes for r in reduced])))
    cuts = _cuts(int(amounts[-1]), bucket_bytes)
    ready = np.interp(cuts[1:], amounts, moments)
    buckets = [
        CommRequest("all_reduce", int(end - start), float(moment), shape.batch_s)
        for start, end, moment in zip(cuts, cuts[1:], ready, strict=False)
    ]
    ordered = sorted([*others, *buckets], key=lambda request: request.ready_s)
    return replace(shape, requests=tuple(ordered))


def _is_bucket(request: CommRequest, shape: StepShape) -> bool:
    return request.op == "all_reduce" and request.needed_s == shape.batch_s


def _cuts(total: int, bucket_bytes: float) -> Sequence[int]:
    """Return where buckets begin and end; the last is what is left."""
    count = max(1, int(np.ceil(total / bucket_bytes)))
    return [min(round(i * bucket_bytes), total) for i in range(count)] + [total]


def _scaled(shape: StepShape, factor: float) -> StepShape:
    requests = tuple(
        request._replace(size_bytes=max(1, round(request.size_bytes * factor)))
        if request.op in ("all_reduce", "reduce_scatter")
        else request
        for request in shape.requests
    )
    return replace(shape, requests=requests)
