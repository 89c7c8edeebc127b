"""Norms of gradients of small batches and of their mean, from which their noise is estimated."""

from collections.abc import Sequence
from typing import Any

import torch

from scalebench.records.race import GradientNorms
from scalebench.spec.workload import Workload
from scalebench.worker.workloads.batches import num_samples


def gradient_norms(
    module: torch.nn.Module, workload: Workload, batches: Sequence[Any]
) -> GradientNorms:
    """Return the norms of the gradients of equal batches at the module's parameters.

    Leaves ``.grad`` of the parameters as it is.

    Args:
        module: The bare model, whole in this process.
        workload: Its loss.
        batches: At least two, each of the same number of samples.
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    total = [torch.zeros_like(p) for p in parameters]
    squares = []
    for batch in batches:
        loss = workload.loss(module, batch)
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        known = [g for g in gradients if g is not None]
        squares.append(_square(known))
        for held, gradient in zip(total, gradients, strict=True):
            if gradient is not None:
                held.add_(gradient, alpha=1 / len(batches))
    return GradientNorms(
        num_batches=len(batches),
        batch_size=num_samples(batches[0]),
        mean_square=float(torch.stack(squares).mean()),
        square_of_mean=float(_square(total)),
    )


def _square(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack([tensor.float().square().sum() for tensor in tensors]).sum()
