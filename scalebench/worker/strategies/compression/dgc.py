"""Deep gradient compression: top-k with momentum correction, clipping, and a ratio that warms up.

Source: Lin et al. 2018 ("Deep Gradient Compression"). What a rank keeps is not the gradient but
its momentum: ``u ← m·u + g``, ``v ← v + u``; the largest elements of v are sent, and both u and v
become 0 where they were (momentum factor masking). The gradient is clipped before, each rank to
N^(−1/2) of the norm allowed for all. The ratio comes down exponentially from a quarter during the
warm-up, here by steps where the paper counts epochs.

What the optimizer receives contains the momentum already, so plain SGD is meant to follow. Norms
are those of a bucket: no rank has the whole gradient while backward still runs. Wire format and
bound: those of top-k.
"""

import torch

from scalebench.worker.strategies.compression.codec import Bucket, Memory, Subtract
from scalebench.worker.strategies.compression.memory import PerBucket
from scalebench.worker.strategies.compression.top_k import TopK

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


class MomentumCorrection(Memory):
    """Keeps velocity and what of it was not sent; two float32 per parameter and rank.

    Attributes:
        momentum: The factor m.
        clip_norm: What all ranks' gradient of a bucket is clipped to; None: not clipped.
    """

    def __init__(self, momentum: float, clip_norm: float | None, world_size: int) -> None:
        self.momentum = momentum
        self.allowed = None if clip_norm is None else clip_norm / world_size**0.5
        self._velocity = PerBucket()
        self._unsent = PerBucket()

    def corrected(self, bucket: Bucket) -> torch.Tensor:
        """Return what was not sent yet of the velocity, this step's included."""
        velocity = self._velocity.of(bucket)
        velocity.mul_(self.momentum).add_(self._clipped(bucket.gradient))
        return self._unsent.of(bucket).add_(velocity)

    def keep(self, bucket: Bucket, subtract_sent: Subtract) -> None:
        """Keep what was not sent, and forget the velocity of what was."""
        sent = torch.zeros_like(bucket.gradient)
        subtract_sent(sent)
        self._unsent.of(bucket).add_(sent)
        self._velocity.of(bucket).masked_fill_(sent != 0, 0.0)

    def _clipped(self, gradient: torch.Tensor) -> torch.Tensor:
        if self.allowed is None:
            return gradient
        norm = torch.linalg.vector_norm(gradient)
        # Not ``clamp``: of a norm that is not a number it would make 1.
        return gradient * torch.where(norm <= self.allowed, 1.0, self.allowed / norm)
