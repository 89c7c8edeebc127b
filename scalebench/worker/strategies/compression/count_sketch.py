"""Count-sketch: a small linear summary of the bucket that tells which elements are large.

Source: Charikar, Chen & Farach-Colton 2002 (the sketch); Ivkin et al. 2019 ("Communication-
efficient distributed SGD with sketching"), whose two rounds are followed: the ranks' sketches are
summed, every rank reads the same k heaviest elements off the sum, and their exact values are summed
in a second round.

Each of r rows adds every element, with a sign, to one of c columns; column and sign are hashes of
the index (multiply-shift: Dietzfelbinger 1996). The estimate of an element is the median over the
rows; a row's is unbiased with variance at most the squared norm over c.

Wire: r·c float32 values, then k float32 values, both all-reduced: the sketch is linear. What is
sent is exact, the rest 0.
"""

import torch
from torch.profiler import record_function

from scalebench.trace.marks import DECODE, ENCODE
from scalebench.worker.strategies.compression.codec import (
    Bucket,
    Codec,
    CollectiveCall,
    Memory,
    Rounds,
    flat,
    num_kept,
    poison,
)
from scalebench.worker.strategies.compression.draw import Draw

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

    def wire_bytes(self, numel: int) -> int:
        """Return the bytes handed over for a bucket, both rounds."""
        sent = self.rows * self.columns(numel) + num_kept(numel, self.ratio)
        return torch.float32.itemsize * sent


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
