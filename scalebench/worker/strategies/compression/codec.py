"""What a compression method is: rounds of communication that turn a bucket into its mean.

A method is written as a generator. It yields what is to be communicated and is sent the answer; it
ends with the mean gradient in the bucket. So the same code runs over a process group
(`scalebench.worker.strategies.compression.hook`) and in one process that plays all ranks
(`scalebench.worker.strategies.compression.emulation`). Most methods need one round: encode,
communicate, decode.

Wire formats are typed parts of one byte buffer, so that a bucket takes one collective. Random
numbers are reproducible, alike on all ranks or different, as needed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch.profiler import record_function

from scalebench.trace.operations.communication_kernels import DECODE, ENCODE

_WORD = 2**64 - 1


@dataclass(frozen=True)
class Draw:
    """Names the random numbers of one bucket of one step on one rank.

    Attributes:
        step: Of the training, from 0.
    """

    seed: int
    step: int
    bucket: int
    rank: int

    def shared(self, device: torch.device, *stream: int) -> torch.Generator:
        """Return a generator that is in the same state on every rank.

        ``stream``: at most one number, not positive: another one for numbers that are independent.
        """
        return _generator(device, self.seed, self.step, self.bucket, *stream)

    def own(self, device: torch.device) -> torch.Generator:
        """Return a generator of this rank alone: roundings of different ranks are independent."""
        return _generator(device, self.seed, self.step, self.bucket, self.rank + 1)


def _generator(device: torch.device, *numbers: int) -> torch.Generator:
    return torch.Generator(device).manual_seed(_mixed(*numbers))


def _mixed(*numbers: int) -> int:
    """Return 63 bits that depend on every number and on their order.

    Source: Steele, Lea & Flood 2014 (SplitMix), once for each number.
    """
    state = len(numbers)
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & _WORD
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _WORD
        state ^= state >> 31
    return state >> 1


ALIGNMENT = 8
"""Bytes to which every part is padded: the widest element of any wire format."""

WireField = tuple[torch.dtype, int]
"""Element type and number of elements."""

MOST_32_BIT = 2**31 - 1


def index_dtype(numel: int) -> torch.dtype:
    """Return the narrowest integer that counts the elements of a bucket."""
    return torch.int32 if numel <= MOST_32_BIT else torch.int64


def num_bytes(*parts: WireField) -> int:
    """Return the bytes of the buffer that holds these parts, padding included."""
    return sum(_padded(count * dtype.itemsize) for dtype, count in parts)


def new_wire(device: torch.device, *parts: WireField) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return a byte buffer, uninitialised, and the views of its parts.

    Padding is zero, so that two encodings of the same thing are the same bytes.
    """
    buffer = torch.empty(num_bytes(*parts), dtype=torch.uint8, device=device)
    start = 0
    for dtype, count in parts:
        used = count * dtype.itemsize
        buffer[start + used : start + _padded(used)] = 0
        start += _padded(used)
    return buffer, views(buffer, *parts)


def views(buffer: torch.Tensor, *parts: WireField) -> list[torch.Tensor]:
    """Return the typed views of a buffer's parts, each of shape ``[count]``."""
    found, start = [], 0
    for dtype, count in parts:
        used = count * dtype.itemsize
        found.append(buffer[start : start + used].view(dtype))
        start += _padded(used)
    return found


def _padded(used: int) -> int:
    return -(-used // ALIGNMENT) * ALIGNMENT


Collective = Literal["all_reduce", "all_gather"]
Subtract = Callable[[torch.Tensor], object]
"""Takes off a bucket what this rank has sent of it."""


@dataclass
class Bucket:
    """The gradients that travel together, as one rank has them.

    Attributes:
        index: Which bucket of the step.
        gradient: float32, shape ``[elements]``, contiguous; in the end it holds the mean.
        keys: Number of each parameter in the model, in the bucket's order.
        shapes: Shape of each parameter.
    """

    index: int
    gradient: torch.Tensor
    keys: tuple[int, ...]
    shapes: tuple[torch.Size, ...]

    @property
    def sizes(self) -> list[int]:
        """Elements of each parameter."""
        return [shape.numel() for shape in self.shapes]


@dataclass(frozen=True)
class CollectiveCall:
    """One collective.

    Attributes:
        collective: ``all_reduce``: the answer is one tensor, the sum over the ranks;
            ``all_gather``: one tensor for each rank, in their order.
        wire: What this rank hands over; contiguous, of the same size on every rank.
        largest: All-reduce by the maximum instead of the sum.
    """

    collective: Collective
    wire: torch.Tensor
    largest: bool = False

    @property
    def num_bytes(self) -> int:
        """Bytes handed over."""
        return self.wire.numel() * self.wire.element_size()


Rounds = Generator[CollectiveCall, Sequence[torch.Tensor], None]


class Memory(ABC):
    """What a rank keeps of a bucket for later steps because it was not sent."""

    @abstractmethod
    def corrected(self, bucket: Bucket) -> torch.Tensor:
        """Return what is to be encoded, shape ``[elements]``; read only."""

    @abstractmethod
    def keep(self, bucket: Bucket, subtract_sent: Subtract) -> None:
        """Remember the rest, once it is known what of it was sent."""


class NoMemory(Memory):
    """What is not sent is lost."""

    def corrected(self, bucket: Bucket) -> torch.Tensor:
        """Return the gradient itself."""
        return bucket.gradient

    def keep(self, bucket: Bucket, subtract_sent: Subtract) -> None:
        """Do nothing."""


class Codec(ABC):
    """A compression method without its memory; it keeps nothing from step to step."""

    @abstractmethod
    def exchange(self, bucket: Bucket, memory: Memory, draw: Draw, world_size: int) -> Rounds:
        """Turn this rank's gradient into the mean over the ranks, in place."""


class OneRound(Codec):
    """A method that encodes, communicates once, and decodes.

    Attributes:
        collective: ``all_reduce`` where the sum of two codes is the code of the sum; what is on
            the wire is then of a floating-point type, and divided by the number of ranks before
            it is summed.
    """

    collective: Collective = "all_gather"

    @abstractmethod
    def encode(self, gradient: torch.Tensor, draw: Draw) -> torch.Tensor:
        """Return the code of a gradient, one contiguous tensor.

        ``gradient``: of any shape and layout, floating point; taken as float32.
        """

    @abstractmethod
    def add_decoded(
        self, wire: torch.Tensor, into: torch.Tensor, weight: float, draw: Draw
    ) -> None:
        """Add ``weight`` times the gradient that a code stands for.

        ``wire``: one rank's code, or a sum of codes where the method is linear. ``into``: float32,
        shape ``[elements]``, contiguous. ``draw``: as in `encode`; its rank is not looked at.
        """

    def exchange(self, bucket: Bucket, memory: Memory, draw: Draw, world_size: int) -> Rounds:
        """Encode, communicate once, decode."""
        with record_function(ENCODE):
            wire = self.encode(memory.corrected(bucket), draw)
            memory.keep(bucket, lambda rest: self.add_decoded(wire, rest, -1.0, draw))
            if self.collective == "all_reduce":
                wire.div_(world_size)
        answer = yield CollectiveCall(self.collective, wire)
        with record_function(DECODE):
            bucket.gradient.zero_()
            weight = 1.0 if self.collective == "all_reduce" else 1 / world_size
            for code in answer:
                self.add_decoded(code, bucket.gradient, weight, draw)


def flat(gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient as float32, shape ``[elements]``, contiguous; a view where it can be."""
    return gradient.reshape(-1).to(torch.float32).contiguous()


def num_kept(numel: int, ratio: float) -> int:
    """Return how many of a bucket's elements a ratio stands for: at least one, if there is one."""
    return min(numel, max(1, int(ratio * numel)))


def poison(gradient: torch.Tensor) -> torch.Tensor:
    """Return 0 where a gradient is finite and NaN where it is not, shape ().

    Methods that send a part of the elements add it to what they send: no NaN stays behind.
    """
    if gradient.numel() == 0:
        return gradient.new_zeros(())
    return gradient.amax() * 0 + gradient.amin() * 0
