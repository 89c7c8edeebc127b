"""The loss that the built-in workloads share."""

import torch
from torch.nn import functional as F

from scalebench.worker.workloads.batches import Batch


def mean_cross_entropy(module: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Return the cross entropy in nats, the mean over samples (and over their tokens).

    Args:
        module: Maps inputs to logits of shape ``[samples, classes]`` or
            ``[samples, tokens, classes]``.
        batch: Inputs, and int64 targets of the logits' shape without its last dimension.
    """
    inputs, targets = batch
    logits = module(inputs)
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())
