"""Threshold: every element at least as large as a given size, however many there are.

Source: Strom 2015 ("Scalable distributed DNN training using commodity GPU cloud computing"), who
sends the threshold itself in place of the value; Sahu et al. 2021 ("Rethinking gradient
sparsification as total error minimization") send the values, as here.

Wire: first the largest number of elements over the ranks (one int64, all-reduced by the maximum),
then on every rank as many indices (int32 up to 2³¹ − 1 elements, else int64) and float32 values,
all-gathered; ranks with fewer send zeros at index 0. What is sent is exact, the rest 0: the error
of an element is below the threshold. NaN and infinity are sent. The host waits for the number.
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
)
from scalebench.worker.strategies.compression.draw import Draw
from scalebench.worker.strategies.compression.wire import Part, index_dtype, new_wire, views


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
            memory.keep(bucket, lambda rest: _add(rest, chosen, sent, -1.0))
            count = torch.tensor([len(chosen)], device=values.device)
        (largest,) = yield CollectiveCall("all_reduce", count, largest=True)
        with record_function(ENCODE):
            parts = self._parts(values.numel(), int(largest))
            wire, (indices, padded) = new_wire(values.device, *parts)
            wire.zero_()
            indices[: len(chosen)] = chosen
            padded[: len(chosen)] = sent
        answer = yield CollectiveCall("all_gather", wire)
        with record_function(DECODE):
            bucket.gradient.zero_()
            for code in answer:
                where, found = views(code, *parts)
                _add(bucket.gradient, where, found, 1 / world_size)

    def chosen(self, values: torch.Tensor) -> torch.Tensor:
        """Return the indices of the elements that are sent."""
        return (~(values.abs() < self.threshold)).nonzero().view(-1)

    def wire_bytes(self, numel: int) -> None:
        """Return None: it depends on the values."""

    def _parts(self, numel: int, count: int) -> tuple[Part, Part]:
        return (index_dtype(numel), count), (torch.float32, count)


def _add(into: torch.Tensor, indices: torch.Tensor, values: torch.Tensor, weight: float) -> None:
    into.index_add_(0, indices, values, alpha=weight)
