"""Top-k: the k elements of a bucket that are largest in size, with their indices.

Source: Aji & Heafield 2017 ("Sparse communication for distributed gradient descent"); Stich et al.
2018 ("Sparsified SGD with memory") prove convergence with error feedback.

Wire: k indices (int32 up to 2³¹ − 1 elements, else int64) and k float32 values; k = ratio of the
bucket, at least one. What is sent is exact, the rest 0: the squared error is at most (1 − k/d) of
the squared norm. NaN and infinity count as largest. Ranks choose differently, so the pairs are
all-gathered.

Random-k: k elements of a bucket, the same on every rank, so that no index is sent.

Source: Stich et al. 2018 ("Sparsified SGD with memory", rand-k); Konečný et al. 2016 (random mask
from a shared seed). Here the bucket is cut into k strata of nearly equal length and one element of
each is drawn: no index twice, no sorting, and at most the variance of drawing from the whole.

Wire: k float32 values, all-reduced: the code is linear. Unbiased when every value is multiplied by
the length of its stratum (``scaled``), which is right without error feedback; with it, values go
as they are, and the squared error is (1 − k/d) of the squared norm on average.

Threshold: every element at least as large as a given size, however many there are.

Source: Strom 2015 ("Scalable distributed DNN training using commodity GPU cloud computing"), who
sends the threshold itself in place of the value; Sahu et al. 2021 ("Rethinking gradient
sparsification as total error minimization") send the values, as here.

Wire: first the largest number of elements over the ranks (one int64, all-reduced by the maximum),
then on every rank as many indices (int32 up to 2³¹ − 1 elements, else int64) and float32 values,
all-gathered; ranks with fewer send zeros at index 0. What is sent is exact, the rest 0: the error
of an element is below the threshold. NaN and infinity are sent. The host waits for the number.

Count-sketch: a small linear summary of the bucket that tells which elements are large.

Source: Charikar, Chen & Farach-Colton 2002 (the sketch); Ivkin et al. 2019 ("Communication-
efficient distributed SGD with sketching"), whose two rounds are followed: the ranks' sketches are
summed, every rank reads the same k heaviest elements off the sum, and their exact values are summed
in a second round.

Each of r rows adds every element, with a sign, to one of c columns; column and sign are hashes of
the index (multiply-shift: Dietzfelbinger 1996). The estimate of an element is the median over the
rows; a row's is unbiased with variance at most the squared norm over c.

Wire: r·c float32 values, then k float32 values, both all-reduced: the sketch is linear. What is
sent is exact, the rest 0.

Deep gradient compression sends what top-k does, with a ratio that warms up; see `hook`.
"""

import torch
from torch.profiler import record_function

from scalebench.trace.operations.communication_kernels import DECODE, ENCODE
from scalebench.worker.strategies.compression.codec import (
    Bucket,
    Codec,
    CollectiveCall,
    Draw,
    Memory,
    OneRound,
    Rounds,
    WireField,
    flat,
    index_dtype,
    new_wire,
    num_kept,
    poison,
    views,
)


def _sparse_parts(numel: int, count: int) -> tuple[WireField, WireField]:
    return (index_dtype(numel), count), (torch.float32, count)


class TopK(OneRound):
    """The largest elements."""

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio

    def ratio_at(self, step: int) -> float:
        """Return what part is sent at a step."""
        return self.ratio

    def encode(self, gradient: torch.Tensor, draw: Draw) -> torch.Tensor:
        """Return indices and values, uint8."""
        values = flat(gradient)
        count = num_kept(values.numel(), self.ratio_at(draw.step))
        wire, (indices, sent) = new_wire(values.device, *_sparse_parts(values.numel(), count))
        chosen = values.abs().topk(count, sorted=False).indices
        indices.copy_(chosen)
        torch.gather(values, 0, chosen, out=sent)
        return wire

    def add_decoded(
        self, wire: torch.Tensor, into: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        """Add the values at their indices."""
        count = num_kept(into.numel(), self.ratio_at(draw.step))
        indices, sent = views(wire, *_sparse_parts(into.numel(), count))
        into.index_add_(0, indices, sent, alpha=weight)


FIRST_RATIO = 0.25


class Dgc(TopK):
    """Top-k whose ratio warms up."""

    def __init__(self, ratio: float, warmup_steps: int) -> None:
        super().__init__(ratio)
        self.warmup_steps = warmup_steps

    def ratio_at(self, step: int) -> float:
        """Return what part is sent: from a quarter to the ratio, by equal factors."""
        if step >= self.warmup_steps:
            return self.ratio
        start = max(FIRST_RATIO, self.ratio)
        return float(start * (self.ratio / start) ** (step / self.warmup_steps))


class RandomK(OneRound):
    """Elements at indices that every rank draws alike."""

    collective = "all_reduce"

    def __init__(self, ratio: float, scaled: bool) -> None:
        self.ratio = ratio
        self.scaled = scaled

    def encode(self, gradient: torch.Tensor, draw: Draw) -> torch.Tensor:
        """Return the values; one that is not finite anywhere makes all of them NaN."""
        values = flat(gradient)
        indices, lengths = self.chosen(values.numel(), draw, values.device)
        sent = values[indices] + poison(values)
        return sent * lengths if self.scaled else sent

    def add_decoded(
        self, wire: torch.Tensor, into: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        """Add the values at the indices that the draw names."""
        indices, _ = self.chosen(into.numel(), draw, into.device)
        into.index_add_(0, indices, wire, alpha=weight)

    def chosen(
        self, numel: int, draw: Draw, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the drawn indices, ascending, and the lengths of their strata; int64 each."""
        count = num_kept(numel, self.ratio)
        bounds = stratum_bounds(numel, count, device)
        lengths = bounds[1:] - bounds[:-1]
        random = draw.shared(device)
        fraction = torch.rand(count, generator=random, device=device, dtype=torch.float64)
        within = (fraction * lengths).long()
        return bounds[:-1] + torch.minimum(within, lengths - 1), lengths


def stratum_bounds(numel: int, count: int, device: torch.device) -> torch.Tensor:
    """Return where ``count`` strata of ``numel`` elements begin and end: int64, [count + 1].

    Their lengths differ by one at most.
    """
    length, longer = divmod(numel, count) if count else (0, 0)
    number = torch.arange(count + 1, device=device)
    return number * length + torch.clamp(number, max=longer)


class Threshold(Codec):
    """The elements that reach a threshold.

    Attributes:
        threshold: In the gradient's own unit; what error feedback adds counts.
    """

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def exchange(self, bucket: Bucket, memory: Memory, draw: Draw, world_size: int) -> Rounds:
        """Agree on the number of elements, then gather them."""
        with record_function(ENCODE):
            values = flat(memory.corrected(bucket))
            chosen = self.chosen(values)
            sent = values[chosen]
            memory.keep(bucket, lambda rest: rest.index_add_(0, chosen, sent, alpha=-1.0))
            count = torch.tensor([len(chosen)], device=values.device)
        (largest,) = yield CollectiveCall("all_reduce", count, largest=True)
        with record_function(ENCODE):
            parts = _sparse_parts(values.numel(), int(largest))
            wire, (indices, padded) = new_wire(values.device, *parts)
            wire.zero_()
            indices[: len(chosen)] = chosen
            padded[: len(chosen)] = sent
        answer = yield CollectiveCall("all_gather", wire)
        with record_function(DECODE):
            bucket.gradient.zero_()
            for code in answer:
                where, found = views(code, *parts)
                bucket.gradient.index_add_(0, where, found, alpha=1 / world_size)

    def chosen(self, values: torch.Tensor) -> torch.Tensor:
        """Return the indices of the elements that are sent."""
        return (~(values.abs() < self.threshold)).nonzero().view(-1)


BLOCK = 1 << 15
"""Elements hashed at a time, so that the hashes stay in a core's cache."""

_BITS = 31
"""Of a hash; enough for buckets below 2³¹ elements."""


class CountSketch(Codec):
    """Heavy elements, found by a sketch of all ranks' gradients together.

    Attributes:
        rows: r, odd, so that the median is one of the estimates.
        columns_per_kept: c for each of the k elements that are sent.
        ratio: k of the bucket's elements, at least one.
    """

    def __init__(self, rows: int, columns_per_kept: int, ratio: float) -> None:
        self.rows = rows
        self.columns_per_kept = columns_per_kept
        self.ratio = ratio

    def exchange(self, bucket: Bucket, memory: Memory, draw: Draw, world_size: int) -> Rounds:
        """Sum the sketches, then the values of the elements that they show to be heavy."""
        with record_function(ENCODE):
            values = flat(memory.corrected(bucket))
            sketch = self.sketch(values, draw).div_(world_size)
        (summed,) = yield CollectiveCall("all_reduce", sketch)
        with record_function(DECODE):
            estimates = self.estimates(summed, values.numel(), draw)
            count = num_kept(values.numel(), self.ratio)
            heavy = estimates.abs().topk(count, sorted=False).indices
        with record_function(ENCODE):
            own = values[heavy]
            memory.keep(bucket, lambda rest: rest.index_add_(0, heavy, own, alpha=-1.0))
            own = (own + poison(values)) / world_size
        (mean,) = yield CollectiveCall("all_reduce", own)
        with record_function(DECODE):
            bucket.gradient.zero_().index_copy_(0, heavy, mean)

    def sketch(self, values: torch.Tensor, draw: Draw) -> torch.Tensor:
        """Return the sketch of a vector, float32, shape ``[rows · columns]``."""
        columns = self.columns(values.numel())
        sketch = torch.zeros(self.rows, columns, device=values.device)
        hashes = _hashes(self.rows, draw, values.device)
        for start in range(0, values.numel(), _block(values)):
            part = values[start : start + _block(values)]
            index = torch.arange(start, start + part.numel(), device=values.device)
            for row, numbers in zip(sketch, hashes, strict=True):
                column, sign = _hashed(index, numbers, columns)
                row.index_add_(0, column, part * sign)
        return sketch.view(-1)

    def estimates(self, sketch: torch.Tensor, numel: int, draw: Draw) -> torch.Tensor:
        """Return a sketch's estimate of every element, float32, shape ``[numel]``."""
        columns = self.columns(numel)
        found = torch.empty(numel, device=sketch.device)
        hashes = _hashes(self.rows, draw, sketch.device)
        for start in range(0, numel, _block(found)):
            stop = min(numel, start + _block(found))
            index = torch.arange(start, stop, device=sketch.device)
            guesses = []
            for row, numbers in zip(sketch.view(self.rows, columns), hashes, strict=True):
                column, sign = _hashed(index, numbers, columns)
                guesses.append(row[column] * sign)
            found[start:stop] = torch.stack(guesses).median(dim=0).values
        return found

    def columns(self, numel: int) -> int:
        """Return the columns of a row; more than the elements would be a waste."""
        return min(numel, self.columns_per_kept * num_kept(numel, self.ratio))


def _block(values: torch.Tensor) -> int:
    return max(1, values.numel()) if values.device.type == "cuda" else BLOCK


def _hashes(rows: int, draw: Draw, device: torch.device) -> list[list[int]]:
    """Return what makes up each row's two hashes: an odd factor and a summand for either."""
    random = draw.shared(torch.device("cpu"))
    numbers = torch.randint(-(2**62), 2**62, (rows, 4), generator=random) * 2 + 1
    return [[int(number) for number in row] for row in numbers]


def _hashed(
    index: torch.Tensor, numbers: list[int], columns: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return column and sign of each index: int64 and float32 (±1), shape ``[indices]``."""
    factor, summand, other_factor, other_summand = numbers
    column = ((index * factor + summand) >> (63 - _BITS)) & (2**_BITS - 1)
    sign = ((index * other_factor + other_summand) >> 62) & 2
    return column % columns, (sign - 1).to(torch.float32)
