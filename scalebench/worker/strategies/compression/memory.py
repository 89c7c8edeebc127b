"""Error feedback: what compression left out of this step is added to the next.

Source: Seide et al. 2014 ("1-bit stochastic gradient descent"); Stich et al. 2018 and Karimireddy
et al. 2019 show that with it every compressor that shrinks the error converges like plain SGD.

Deep gradient compression: top-k with momentum correction, clipping, and a ratio that warms up.

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


class PerBucket:
    """One float32 vector for every bucket, zero at first, kept over a change of the buckets.

    DDP rebuilds its buckets after the first step. A parameter takes its part along.
    """

    def __init__(self) -> None:
        self._flat: dict[int, torch.Tensor] = {}
        self._layout: dict[int, tuple[tuple[int, ...], list[int]]] = {}
        self._loose: dict[int, torch.Tensor] = {}

    def of(self, bucket: Bucket) -> torch.Tensor:
        """Return a bucket's vector, shape ``[elements]``; writing to it changes what is kept."""
        known = self._layout.get(bucket.index)
        if known is None or known[0] != bucket.keys:
            self._take_apart()
            self._put_together(bucket)
        return self._flat[bucket.index]

    def _take_apart(self) -> None:
        for index, (keys, sizes) in self._layout.items():
            self._loose.update(zip(keys, self._flat[index].split(sizes), strict=True))
        self._flat.clear()
        self._layout.clear()

    def _put_together(self, bucket: Bucket) -> None:
        vector = torch.zeros_like(bucket.gradient)
        for key, part in zip(bucket.keys, vector.split(bucket.sizes), strict=True):
            if key in self._loose:
                part.copy_(self._loose.pop(key))
        self._flat[bucket.index] = vector
        self._layout[bucket.index] = (bucket.keys, bucket.sizes)


class ErrorFeedback(Memory):
    """Keeps ``e ← (e + g) − decode(encode(e + g))``; one float32 per parameter and rank.

    Nothing is lost: at any time what was sent plus what is kept is the sum of all gradients, up to
    rounding.
    """

    def __init__(self) -> None:
        self._residual = PerBucket()

    def corrected(self, bucket: Bucket) -> torch.Tensor:
        """Return the gradient plus what is left of earlier ones."""
        return self._residual.of(bucket).add_(bucket.gradient)

    def keep(self, bucket: Bucket, subtract_sent: Subtract) -> None:
        """Keep what was not sent."""
        subtract_sent(self._residual.of(bucket))


class MomentumCorrection(Memory):
    """Keeps velocity and what of it was not sent; two float32 per parameter and rank.

    Attributes:
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
