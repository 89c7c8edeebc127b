"""Random-k: k elements of a bucket, the same on every rank, so that no index is sent.

Source: Stich et al. 2018 ("Sparsified SGD with memory", rand-k); Konečný et al. 2016 (random mask
from a shared seed). Here the bucket is cut into k strata of nearly equal length and one element of
each is drawn: no index twice, no sorting, and at most the variance of drawing from the whole.

Wire: k float32 values, all-reduced: the code is linear. Unbiased when every value is multiplied by
the length of its stratum (``scaled``), which is right without error feedback; with it, values go
as they are, and the squared error is (1 − k/d) of the squared norm on average.
"""

import torch

from scalebench.worker.strategies.compression.codec import OneRound, flat, num_kept, poison
from scalebench.worker.strategies.compression.draw import Draw


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

    def wire_bytes(self, numel: int) -> int:
        """Return the bytes handed over for a bucket."""
        return torch.float32.itemsize * num_kept(numel, self.ratio)

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
