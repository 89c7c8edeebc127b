"""PowerSGD as one process computes it, to check torch's hook against.

Source: Vogels et al. 2019 ("PowerSGD"), algorithms 1 and 2, with torch's choices: every rank's
error is what it wanted to send minus the mean that came of it, Q starts from the numbers that
torch's state draws, and a matrix that rank r would not make half as small goes uncompressed.

Wire, per matrix of n × m: r·n float32 values (P) and r·m (Q), all-reduced one after the other, and
before them everything uncompressed, such as biases. There is no bound of the error for one step.
"""

import numpy as np
import torch

from scalebench.worker.strategies.compression.codec import (
    Bucket,
    Codec,
    CollectiveCall,
    Draw,
    Memory,
    Rounds,
)

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

    def wire_bytes(self, numel: int) -> None:
        """Return None: it depends on the shapes."""

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
