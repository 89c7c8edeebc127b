"""DDP's communication hook around a codec, with error feedback.

Error feedback: what compression left out of this step is added to the next.

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

DDP hands over a bucket when backward has filled it. The hook encodes it and starts its first
collective, which runs while backward goes on. With the last bucket everything is brought to its
end in order: waiting, further rounds, decoding. That is where DDP would wait anyway, it happens on
the training thread (so a profiler sees it), and on a GPU it is only enqueued.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from scalebench.records.measured.rank import CompressionTraffic
from scalebench.worker.strategies.compression.codec import (
    Bucket,
    Codec,
    CollectiveCall,
    Draw,
    Memory,
    Rounds,
    Subtract,
)

Layout = tuple[tuple[int, ...], ...]
"""The numbers of the parameters in every bucket of a step."""

Future = torch.futures.Future[torch.Tensor]


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


@dataclass
class Observer:
    """Sees every bucket of a training: how they are laid out, and what is communicated of them.

    Attributes:
        numbers: ``id`` of a parameter → its number in the model.
        layouts: First step → layout from then on.
        traffic: What the last complete step handed over.
    """

    numbers: dict[int, int]
    step: int = 0
    layouts: dict[int, Layout] = field(default_factory=dict)
    traffic: CompressionTraffic | None = None
    _buckets: list[tuple[int, ...]] = field(default_factory=list)
    _bytes: Counter[str] = field(default_factory=Counter)

    def see(self, bucket: GradBucket) -> tuple[int, ...]:
        """Note a bucket; return the numbers of its parameters."""
        keys = tuple(self.numbers[id(parameter)] for parameter in bucket.parameters())
        self._buckets.append(keys)
        self.count("gradient", bucket.buffer().numel() * bucket.buffer().element_size())
        return keys

    def count(self, what: str, num_bytes: int) -> None:
        """Add to what this step handed over: to a collective by its name, or ``gradient``."""
        self._bytes[what] += num_bytes

    def end_step(self) -> None:
        """Close the step."""
        layout = tuple(self._buckets)
        if not self.layouts or layout != list(self.layouts.values())[-1]:
            self.layouts[self.step] = layout
        self.traffic = CompressionTraffic(
            num_buckets=len(layout),
            gradient_bytes=self._bytes["gradient"],
            all_reduce_bytes=self._bytes["all_reduce"],
            all_gather_bytes=self._bytes["all_gather"],
        )
        self._buckets, self._bytes = [], Counter()
        self.step += 1

    def layout_at(self, step: int) -> Layout:
        """Return how the buckets of a step were laid out."""
        return self.layouts[max(first for first in self.layouts if first <= step)]


@dataclass
class _Exchange:
    """A bucket under way."""

    rounds: Rounds
    bucket: Bucket
    buffer: torch.Tensor
    future: Future
    finish: Callable[[], Sequence[torch.Tensor]]


@dataclass
class Compression:
    """The state of the hook: a codec, what this rank keeps, and the buckets under way."""

    codec: Codec
    memory: Memory
    seed: int
    observer: Observer
    _under_way: list[_Exchange] = field(default_factory=list)

    def begin(self, grad_bucket: GradBucket) -> Future:
        """Encode a bucket and start its first collective."""
        keys = self.observer.see(grad_bucket)
        buffer = grad_bucket.buffer()
        shapes = tuple(gradient.shape for gradient in grad_bucket.gradients())
        bucket = Bucket(grad_bucket.index(), buffer.to(torch.float32), keys, shapes)
        draw = Draw(self.seed, self.observer.step, bucket.index, dist.get_rank())
        rounds = self.codec.exchange(bucket, self.memory, draw, dist.get_world_size())
        devices: list[int | str | torch.device] = (
            [buffer.device] if buffer.device.type == "cuda" else []
        )
        future: Future = torch.futures.Future(devices=devices)
        exchange = _Exchange(rounds, bucket, buffer, future, self._start(next(rounds)))
        self._under_way.append(exchange)
        if grad_bucket.is_last():
            self._end_all()
        return future

    def _end_all(self) -> None:
        under_way, self._under_way = self._under_way, []
        for exchange in under_way:
            self._end(exchange)
        self.observer.end_step()

    def _end(self, exchange: _Exchange) -> None:
        try:
            while True:
                request = exchange.rounds.send(exchange.finish())
                exchange.finish = self._start(request)
        except StopIteration:
            exchange.buffer.copy_(exchange.bucket.gradient)
            exchange.future.set_result(exchange.buffer)

    def _start(self, request: CollectiveCall) -> Callable[[], Sequence[torch.Tensor]]:
        """Start a collective; return what waits for it and returns the answer."""
        self.observer.count(request.collective, request.num_bytes)
        wire = request.wire
        if request.collective == "all_reduce":
            answers = [wire]
        else:
            gathered = wire.new_empty(dist.get_world_size() * wire.numel())
            answers = list(gathered.view(dist.get_world_size(), -1).unbind())
        if wire.numel() == 0:
            return lambda: answers
        if request.collective == "all_gather":
            work: Any = dist.all_gather(answers, wire, async_op=True)
        else:
            operation = dist.ReduceOp.MAX if request.largest else dist.ReduceOp.SUM
            work = dist.all_reduce(wire, operation, async_op=True)

        def finish() -> Sequence[torch.Tensor]:
            work.wait()
            return answers

        return finish


def compress(state: Compression, bucket: GradBucket) -> Future:
    """Compress a bucket: DDP's hook for every codec."""
    return state.begin(bucket)


def leave_alone(state: Observer, bucket: GradBucket) -> Future:
    """Communicate nothing: every rank keeps its own gradient. The bound of what can be gained."""
    state.see(bucket)
    if bucket.is_last():
        state.end_step()
    devices: list[int | str | torch.device] = (
        [bucket.buffer().device] if bucket.buffer().is_cuda else []
    )
    future: Future = torch.futures.Future(devices=devices)
    future.set_result(bucket.buffer())
    return future
