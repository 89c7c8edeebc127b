"""Optimizers by name: torch's own, and those for large batches that torch does not have."""

from collections.abc import Iterable

import torch

from scalebench.spec.race import Recipe
from scalebench.worker.optimizers.large_batch import Lamb, Lars

__all__ = ["Lamb", "Lars", "optimizer_of"]


def optimizer_of(recipe: Recipe, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer of a recipe, at the rate that it has after its warm-up."""
    rate, decay, momentum = recipe.learning_rate, recipe.weight_decay, recipe.momentum
    betas = (momentum, 0.999)
    match recipe.optimizer:
        case "adamw":
            return torch.optim.AdamW(parameters, rate, betas, weight_decay=decay, fused=True)
        case "sgd":
            return torch.optim.SGD(parameters, rate, momentum, weight_decay=decay)
        case "nesterov":
            nesterov = momentum > 0
            return torch.optim.SGD(
                parameters, rate, momentum, weight_decay=decay, nesterov=nesterov
            )
        case "lars":
            return Lars(parameters, rate, momentum, weight_decay=decay)
        case "lamb":
            return Lamb(parameters, rate, betas, weight_decay=decay)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Have the next step use a learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate
