"""What if: the same step with other buckets or a faster link; and laws that know nothing of links.

At which bandwidth compressing gradients pays: the serial limit.

Compression pays where the time that its smaller messages save on the wire exceeds what encoding and
decoding take. With nothing overlapped and latencies alike, both are equal at::

    B* = (2(N−1)/N·D − W) / (t_encode + t_decode)

W: bytes that a rank sends for the compressed gradient: ``2(N−1)/N·D_c`` where the code is
all-reduced, ``(N−1)·D_c`` where it is all-gathered. Slower links than B* win; B* ≤ 0 means never.

Source: the bandwidth terms of Thakur et al. 2005 and Patarasuk & Yuan 2009; Agarwal et al. 2022
("On the utility of gradient compression in distributed training systems", MLSys) weigh the same
costs. Overlap with backward hides transfer first and moves the true break-even down.

Laws that know nothing of links: Amdahl, Gustafson, USL; fitted to speedups, scored alike.

Each is a curve S(N) with one or two parameters. They stand next to the mechanistic model so that a
reader sees what each is worth: fitted without the largest number of ranks, and compared with it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from scalebench.costmodel.links.laws import busbw_factor
from scalebench.costmodel.pipeline_step import PipelineShape
from scalebench.costmodel.step import CommRequest, StepShape
from scalebench.errors import UsageError
from scalebench.stats import Estimate


def sent_bytes(all_reduce_bytes: float, all_gather_bytes: float, world_size: int) -> float:
    """Return what a rank sends, by the ring's law.

    Args:
        all_reduce_bytes: Handed to all-reduces.
        all_gather_bytes: Handed to all-gathers: this rank's own part.
        world_size: N.
    """
    gathered = all_gather_bytes * world_size
    return (
        busbw_factor("all_reduce", world_size) * all_reduce_bytes
        + busbw_factor("all_gather", world_size) * gathered
    )


def saved_bytes(
    gradient_bytes: float, all_reduce_bytes: float, all_gather_bytes: float, world_size: int
) -> float:
    """Return how much less a rank sends than for the gradients as they are; may be negative."""
    exact = sent_bytes(gradient_bytes, 0, world_size)
    return exact - sent_bytes(all_reduce_bytes, all_gather_bytes, world_size)


def break_even_byte_per_s(saved: float, codec_s: Estimate) -> Estimate:
    """Return the bandwidth below which compression pays; 0 or less: at none.

    Args:
        saved: Bytes that a rank does not have to send, by `saved_bytes`.
        codec_s: Encoding and decoding of one step, seconds, above 0; its interval becomes that
            of the bandwidth.

    Raises:
        ValueError: Encoding and decoding take no time: every link would do.
    """
    if not min(codec_s.value, codec_s.reach[0]) > 0:
        raise ValueError("encoding and decoding must take some time")
    if saved <= 0:
        ends = [None if end is None else saved / end for end in (codec_s.low, codec_s.high)]
        return Estimate(value=saved / codec_s.value, low=ends[0], high=ends[1], n=codec_s.n)
    return codec_s.inverted(saved)


def pays(break_even: Estimate, link_byte_per_s: float) -> bool | None:
    """Tell whether compression pays on a link; None: the interval holds the link's bandwidth."""
    if not math.isfinite(link_byte_per_s) or break_even.value <= 0:
        return False
    low, high = break_even.ends or (0.0, math.inf)
    return True if low > link_byte_per_s else False if high < link_byte_per_s else None


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

    def described(self) -> list[str]:
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


class FittedLaw(NamedTuple):
    """A law with its parameters.

    Attributes:
        name: Of the law.
        parameters: Name → value.
        speedup: S(N).
    """

    name: str
    parameters: Mapping[str, float]
    speedup: Callable[[int], float]


Sizes = Sequence[int]
Speedups = Sequence[float]


def fit_amdahl(world_sizes: Sizes, speedups: Speedups) -> FittedLaw:
    """``S = 1/(s + (1−s)/N)``: s, the serial fraction, by least squares of ``1/S``, 0 ≤ s ≤ 1.

    Source: Amdahl 1967.
    """
    n, inverse = np.array(world_sizes, dtype=float), 1 / np.array(speedups)
    serial = _clipped(_slope(1 - 1 / n, inverse - 1 / n))
    return FittedLaw("Amdahl", {"serial": serial}, lambda m: 1 / (serial + (1 - serial) / m))


def fit_gustafson(world_sizes: Sizes, speedups: Speedups) -> FittedLaw:
    """``S = N − s·(N−1)``: s by least squares, 0 ≤ s ≤ 1. Source: Gustafson 1988."""
    n, s = np.array(world_sizes, dtype=float), np.array(speedups)
    serial = _clipped(_slope(n - 1, n - s))
    return FittedLaw("Gustafson", {"serial": serial}, lambda m: m - serial * (m - 1))


def fit_usl(world_sizes: Sizes, speedups: Speedups) -> FittedLaw:
    """``S = N/(1 + σ(N−1) + κN(N−1))``: contention σ and coherency κ, neither negative.

    By least squares of ``N/S − 1``. Source: Gunther 2007, the universal scalability law.
    """
    n, s = np.array(world_sizes, dtype=float), np.array(speedups)
    (sigma, kappa), _ = nnls(np.column_stack((n - 1, n * (n - 1))), n / s - 1)

    def speedup(m: int) -> float:
        return float(m / (1 + sigma * (m - 1) + kappa * m * (m - 1)))

    return FittedLaw("USL", {"sigma": float(sigma), "kappa": float(kappa)}, speedup)


def constant_efficiency(world_sizes: Sizes, speedups: Speedups) -> FittedLaw:
    """``S = E·N`` with the efficiency of the largest number of ranks that was measured."""
    largest = int(np.argmax(world_sizes))
    efficiency = speedups[largest] / world_sizes[largest]
    return FittedLaw("constant efficiency", {"efficiency": efficiency}, lambda m: efficiency * m)


LAWS: tuple[Callable[[Sizes, Speedups], FittedLaw], ...] = (
    fit_amdahl,
    fit_gustafson,
    fit_usl,
    constant_efficiency,
)


def fit_all(world_sizes: Sizes, speedups: Speedups) -> list[FittedLaw]:
    """Fit every law.

    Args:
        world_sizes: Numbers of ranks, at least one of them above 1, shape (n,).
        speedups: Measured at each, positive, shape (n,).

    Raises:
        UsageError: There is nothing above one rank, or a speedup is not positive.
    """
    several = [(n, s) for n, s in zip(world_sizes, speedups, strict=True) if n > 1]
    if not several or min(s for _, s in several) <= 0:
        raise UsageError("A scaling law needs a positive speedup at 2 ranks or more.")
    return [fit([n for n, _ in several], [s for _, s in several]) for fit in LAWS]


def _slope(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Return the least-squares slope of a line through the origin."""
    return float(x @ y / (x @ x))


def _clipped(share: float) -> float:
    return min(max(share, 0.0), 1.0)
