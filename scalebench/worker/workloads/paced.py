"""Stages of a fixed duration instead of arithmetic: communication without a compute load.

A rank of this workload waits where another would compute. Its parameters and gradients are real
and so is what is done with them: they are reduced between ranks, checked against the reference and
applied by the optimizer. So many ranks share a few cores without disturbing one another, as ranks
do whose computation runs on a device.

Stages sleep. They do not keep a core busy, because a core, or a rank's share of one, is what moves
the bytes meanwhile; on a GPU the computation would leave it free, too.

A stage multiplies what passes through it by ``1 + w·d``, with d a fixed pattern: every one of the
parameters w has a gradient of its own, which depends on the batch, at the price of one pass over
them. The model learns to double its input.
"""

import time
from typing import Any

import torch
from torch import nn
from torch.profiler import record_function

from scalebench.spec.presets import PacedShape
from scalebench.spec.workload import Shard, Workload
from scalebench.trace.operations.names import STAGE
from scalebench.worker.workloads.batches import Batch, ResidentBatches, num_synthetic_samples

WIDTH = 16
FACTOR = 2.0


def wait(seconds: float) -> None:
    """Let ``seconds`` pass; a trace shows it as computation."""
    with record_function(STAGE):
        time.sleep(seconds)


class _Paced(torch.autograd.Function):
    """A stage's arithmetic, and the waiting before it in both directions."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        pattern: torch.Tensor,
        forward_s: float,
        backward_s: float,
    ) -> torch.Tensor:
        """Map ``[B, WIDTH]`` to the same shape; durations are those of one sample, seconds."""
        wait(forward_s * len(x))
        factor = 1 + torch.dot(weight, pattern)
        ctx.save_for_backward(x, pattern, factor)
        ctx.backward_s = backward_s
        ctx.has_both = ctx.needs_input_grad[0] and ctx.needs_input_grad[1]
        return x * factor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Return the gradients of x and weight; the others have none."""
        x, pattern, factor = ctx.saved_tensors
        for_x, for_weight = ctx.needs_input_grad[:2]
        # A pipeline may ask for one gradient after the other: each is half of the work.
        is_half = ctx.has_both and not (for_x and for_weight)
        wait(ctx.backward_s * len(x) * (0.5 if is_half else 1))
        of_x = gradient * factor if for_x else None
        of_weight = pattern * (gradient * x).sum() if for_weight else None
        return of_x, of_weight, None, None, None


class Stage(nn.Module):
    """``shape.stage_parameters`` parameters, and a time for each sample in each direction."""

    def __init__(self, shape: PacedShape, pattern: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape.stage_parameters))
        self.pattern = pattern  # no buffer: DDP would send it at every step
        self.forward_s, self.backward_s = shape.stage_s

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[B, WIDTH]`` to the same shape."""
        return _Paced.apply(  # type: ignore[no-any-return, no-untyped-call]
            x, self.weight, self.pattern, self.forward_s, self.backward_s
        )


class Paced(nn.Sequential):
    """The stages, one after the other; they share a pattern, which depends on nothing."""

    def __init__(self, shape: PacedShape) -> None:
        generator = torch.Generator(device="cpu").manual_seed(0)
        pattern = torch.randn(shape.stage_parameters, generator=generator, device="cpu")
        pattern /= shape.stage_parameters
        super().__init__(*(Stage(shape, pattern) for _ in range(shape.stages)))


def mean_square_error(module: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the mean over samples and features of the squared error."""
    inputs, targets = batch
    return nn.functional.mse_loss(module(inputs), targets)


def build_paced(spec: PacedShape, shard: Shard) -> Workload:
    """Return the stages and their samples.

    Batches are (inputs, targets), both ``[B, WIDTH]`` float32.

    Raises:
        UsageError: Too few samples for a global batch.
    """
    num_samples = num_synthetic_samples(spec.batch_size)
    generator = torch.Generator(device="cpu").manual_seed(shard.seed)
    inputs = torch.randn(num_samples, WIDTH, generator=generator, device="cpu").to(shard.device)

    def gather(index: torch.Tensor) -> Batch:
        chosen = inputs.index_select(0, index)
        return chosen, FACTOR * chosen

    module = Paced(spec)
    return Workload(
        module=module,
        batches=ResidentBatches(spec.name, num_samples, shard, gather),
        loss=mean_square_error,
        blocks=tuple(module),
        layers=tuple(module),
    )
