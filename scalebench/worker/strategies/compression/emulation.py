"""Compressed training of all ranks in one process: what the ranks' results are checked against.

The same codecs, memories and random numbers, in the same buckets, on the ranks' own batches; no
process group, no hook, no DDP.

torch's PowerSGD is emulated by a separate implementation. Source: Vogels et al. 2019 ("PowerSGD"),
algorithms 1 and 2, with torch's choices: every rank's error is what it wanted to send minus the
mean that came of it, Q starts from the numbers that torch's state draws, and a matrix that rank r
would not make half as small goes uncompressed.

Wire, per matrix of n × m: r·n float32 values (P) and r·m (Q), all-reduced one after the other, and
before them everything uncompressed, such as biases. There is no bound of the error for one step.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from scalebench.spec import Compressed
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies.compression.codec import (
    Bucket,
    Codec,
    CollectiveCall,
    Draw,
    Memory,
    NoMemory,
    Rounds,
)
from scalebench.worker.strategies.compression.hook import Layout
from scalebench.worker.strategies.compression.methods import CODECS, new_memory
from scalebench.worker.strategies.compression.quantise import Cast
from scalebench.worker.strategies.data_parallel import PlainTraining

EPSILON = 1e-8
"""Added to the norm of a column, so that a gradient of zeros is not divided by zero."""

LEAST_SAVING = 2


class PowerSgd(Codec):
    """What torch's hook keeps and does on one rank.

    Attributes:
        rank: Columns of P and Q.
        start_step: Before it gradients are all-reduced as they are.
        error_feedback: Whether the error is added to the next step.
    """

    def __init__(self, rank: int, start_step: int, error_feedback: bool) -> None:
        self.rank = rank
        self.start_step = start_step
        self.error_feedback = error_feedback
        self._random = np.random.RandomState(0)
        self._error: dict[int, torch.Tensor] = {}
        self._factors: dict[int, list[torch.Tensor]] = {}

    def exchange(self, bucket: Bucket, memory: Memory, draw: Draw, world_size: int) -> Rounds:
        """Multiply, sum, orthogonalise, multiply again, sum again."""
        gradient = bucket.gradient
        if draw.step < self.start_step:
            (mean,) = yield CollectiveCall("all_reduce", gradient / world_size)
            gradient.copy_(mean)
            return
        if self.error_feedback:
            gradient.add_(self._error.get(bucket.index, torch.zeros_like(gradient)))
        wanted = gradient.clone()
        matrices, rest = self._divided(bucket)
        factors = self._starting_factors(bucket.index, matrices)
        (summed,) = yield CollectiveCall("all_reduce", torch.cat([*rest, gradient.new_empty(0)]))
        for part, mean in zip(rest, summed.split([len(x) for x in rest]), strict=True):
            part.copy_(mean / world_size)
        products = [matrix @ factor for matrix, factor in zip(matrices, factors, strict=True)]
        (summed,) = yield CollectiveCall("all_reduce", _joined(products, gradient))
        bases = [orthogonal(total) for total in _divided_like(summed, products)]
        factors = [matrix.t() @ basis for matrix, basis in zip(matrices, bases, strict=True)]
        (summed,) = yield CollectiveCall("all_reduce", _joined(factors, gradient))
        factors = [total / world_size for total in _divided_like(summed, factors)]
        self._factors[bucket.index] = factors
        for matrix, basis, factor in zip(matrices, bases, factors, strict=True):
            matrix.copy_(basis @ factor.t())
        self._error[bucket.index] = wanted - gradient

    def _divided(self, bucket: Bucket) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return the matrices that are compressed, by shape, and the rest; views of the bucket."""
        by_shape: dict[tuple[int, ...], list[torch.Tensor]] = {}
        rest = []
        for part, shape in zip(bucket.gradient.split(bucket.sizes), bucket.shapes, strict=True):
            matrix = part.view(shape[0], -1) if shape else part.view(1, 1)
            rows, columns = matrix.shape
            rank = min(rows, columns, self.rank)
            if (rows + columns) * rank * LEAST_SAVING < rows * columns:
                by_shape.setdefault(tuple(matrix.shape), []).append(matrix)
            else:
                rest.append(part)
        return [matrix for alike in by_shape.values() for matrix in alike], rest

    def _starting_factors(self, index: int, matrices: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return Q of every matrix: the last step's, or random numbers; orthogonal columns."""
        if index in self._factors:
            return [orthogonal(factor) for factor in self._factors[index]]
        random = torch.Generator().manual_seed(self._random.randint(1_000_000_000))
        return [
            orthogonal(
                torch.randn(m.shape[1], min(*m.shape, self.rank), generator=random).to(m.device)
            )
            for m in matrices
        ]


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Return the columns made orthonormal, one after the other (Gram-Schmidt, float32)."""
    columns: list[torch.Tensor] = []
    for column in matrix.unbind(dim=1):
        for other in columns:
            column = column - (other * column).sum() * other
        columns.append(column / (column.norm() + EPSILON))
    return torch.stack(columns, dim=1)


def _joined(matrices: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    return torch.cat([*(matrix.reshape(-1) for matrix in matrices), like.new_empty(0)])


def _divided_like(joined: torch.Tensor, matrices: list[torch.Tensor]) -> list[torch.Tensor]:
    parts = joined.split([matrix.numel() for matrix in matrices])
    return [part.view(m.shape) for part, m in zip(parts, matrices, strict=True)]


def run_in_lockstep(ranks: Sequence[Rounds]) -> None:
    """Carry out the rounds of all ranks together until every rank is done.

    Args:
        ranks: One generator for each rank, in their order, not started yet.

    Raises:
        ValueError: The ranks do not ask for the same collective, which would hang real ones.
    """
    requests = [_next(rounds, None) for rounds in ranks]
    while any(request is not None for request in requests):
        asked = [request for request in requests if request is not None]
        if len({(r.collective, r.largest, r.num_bytes, r.wire.dtype) for r in asked}) > 1:
            raise ValueError("the ranks ask for different collectives")
        if len(asked) < len(ranks):
            raise ValueError("some ranks are done and others are not")
        requests = [_next(rounds, answer(asked)) for rounds in ranks]


def _next(rounds: Rounds, reply: Sequence[torch.Tensor] | None) -> CollectiveCall | None:
    try:
        return next(rounds) if reply is None else rounds.send(reply)
    except StopIteration:
        return None


def answer(requests: Sequence[CollectiveCall]) -> list[torch.Tensor]:
    """Return what the collective that all ranks ask for gives each of them.

    The result has its own memory for every call: ranks write to what they are sent.
    """
    wires = [request.wire for request in requests]
    if requests[0].collective == "all_gather":
        return [wire.clone() for wire in wires]
    total = wires[0].clone()
    for wire in wires[1:]:
        total = torch.maximum(total, wire) if requests[0].largest else total.add_(wire)
    return [total]


Gradients = dict[str, torch.Tensor]


class Emulation:
    """All ranks of a compressed training, one after the other.

    The replicas of real ranks stay the same, so one module stands for all of them.

    Attributes:
        exact: Name → mean of the ranks' gradients in the last step, before compression.

    ``other``: settings of the plain execution that are to differ.
    """

    def __init__(self, workload: Workload, context: RankContext, **other: bool) -> None:
        strategy = context.cell.strategy
        assert isinstance(strategy, Compressed)
        self.seed, self.world_size = context.cell.seed, context.cell.world_size
        baseline = strategy.baseline().model_copy(update=other)
        self.training = PlainTraining(baseline, workload, context)
        self.parameters = list(self.training.module.named_parameters())
        ranks = range(self.world_size)
        self.codecs = [_codec(strategy) for _ in ranks]
        self.memories = [_memory(strategy, self.world_size) for _ in ranks]
        self.exact: Gradients = {}
        self.num_steps = 0

    def step(self, batches: Sequence[Any], layout: Layout) -> float:
        """Train one step; return the mean loss over the ranks."""
        own: list[list[torch.Tensor]] = []
        losses = []
        for batch in batches:
            self.training.optimizer.zero_grad()
            losses.append(float(self.training.forward_backward(batch)))
            own.append([gradient.clone() for _, gradient in self.training.gradients()])
        self.exact = {
            name: torch.stack([gradients[number] for gradients in own]).double().mean(dim=0)
            for number, (name, _) in enumerate(self.parameters)
        }
        for index, keys in enumerate(layout):
            self._exchange(index, keys, own)
        self.training.optimizer.step()
        self.num_steps += 1
        return sum(losses) / len(losses)

    def gradients(self) -> Gradients:
        """Return the mean gradients of the last step, after compression, by name."""
        return dict(self.training.gradients())

    def _exchange(
        self, index: int, keys: tuple[int, ...], own: Sequence[Sequence[torch.Tensor]]
    ) -> None:
        """Send one bucket through the method on all ranks; write the mean to the parameters."""
        shapes = tuple(self.parameters[key][1].shape for key in keys)
        buckets = [
            Bucket(index, torch.cat([of_rank[key].reshape(-1) for key in keys]), keys, shapes)
            for of_rank in own
        ]
        run_in_lockstep(
            [
                codec.exchange(
                    bucket, memory, Draw(self.seed, self.num_steps, index, rank), self.world_size
                )
                for rank, (bucket, codec, memory) in enumerate(
                    zip(buckets, self.codecs, self.memories, strict=True)
                )
            ]
        )
        parts = buckets[0].gradient.split(buckets[0].sizes)
        for key, part, shape in zip(keys, parts, shapes, strict=True):
            gradient = self.parameters[key][1].grad
            assert gradient is not None
            gradient.copy_(part.view(shape))


def _codec(strategy: Compressed) -> Codec:
    settings = strategy.settings
    if strategy.method == "none":
        return Cast(torch.float32)
    if strategy.method == "powersgd":
        return PowerSgd(settings["rank"], settings["start_step"], settings["error_feedback"])
    return CODECS[strategy.method](settings)


def _memory(strategy: Compressed, world_size: int) -> Memory:
    if strategy.method in CODECS:
        return new_memory(strategy.settings, world_size)
    return NoMemory()
