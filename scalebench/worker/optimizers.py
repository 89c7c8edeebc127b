"""Optimizers by name: torch's own, and LAMB and LARS for large batches.

LAMB is Adam whose step is scaled in each layer to the size of its weights (You et al. 2019); LARS
is SGD with momentum whose rate is adapted in each layer (You, Gitman & Ginsburg 2017).
"""

import math
from collections.abc import Iterable
from typing import Any

import torch

from scalebench.spec.recovery import Recipe


class _ByLayer(torch.optim.Optimizer):
    """Updates each tensor by itself."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take a step; nothing in it waits for the device."""
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is not None:
                    self._update(w, w.grad, group)

    def _update(self, w: torch.Tensor, g: torch.Tensor, group: dict[str, Any]) -> None:
        raise NotImplementedError


class Lars(_ByLayer):
    """Layer-wise adaptive rate scaling; algorithm 1 of arXiv:1708.03888.

    For a parameter w with gradient g, rate η, momentum m, decay β and trust coefficient τ::

        λ = τ · ‖w‖ / (‖g‖ + β · ‖w‖)
        v ← m · v + η · λ · (g + β · w)
        w ← w − v

    Where a norm is zero, λ is 1. Biases and norms' parameters (one dimension) are trained without
    decay and with λ = 1, as the paper's own experiments do.

    Args:
        parameters: Tensors, or groups of them.
        lr: η.
        momentum: m.
        weight_decay: β.
        trust: τ.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
    ) -> None:
        settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust}
        super().__init__(parameters, settings)

    def _update(self, w: torch.Tensor, g: torch.Tensor, group: dict[str, Any]) -> None:
        update = g
        if w.ndim > 1:
            decay = group["weight_decay"]
            of_w, of_g = torch.linalg.vector_norm(w), torch.linalg.vector_norm(g)
            ratio = group["trust"] * of_w / (of_g + decay * of_w)
            usable = (of_w > 0) & (of_g > 0)
            update = (g + decay * w) * torch.where(usable, ratio, torch.ones_like(ratio))
        state = self.state[w]
        velocity = state.get("momentum_buffer")
        if velocity is None:
            velocity = state["momentum_buffer"] = torch.zeros_like(w)
        velocity.mul_(group["momentum"]).add_(update, alpha=group["lr"])
        w.sub_(velocity)


class Lamb(_ByLayer):
    """Layer-wise adaptive moments for batch training; algorithm 2 of arXiv:1904.00962.

    With m and v the moments of Adam, both corrected for their start at zero, and decay λ::

        r = m̂ / (√v̂ + ε)
        w ← w − η · ‖w‖ / ‖r + λ·w‖ · (r + λ·w)

    Where a norm is zero the ratio is 1. Biases and norms' parameters (one dimension) are trained
    without decay and with a ratio of 1.

    Args:
        parameters: Tensors, or groups of them.
        lr: η.
        betas: β₁ and β₂ of the moments.
        eps: ε.
        weight_decay: λ.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(parameters, settings)

    def _update(self, w: torch.Tensor, g: torch.Tensor, group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        state = self.state[w]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(w), exp_avg_sq=torch.zeros_like(w))
        state["step"] += 1
        mean, square, step = state["exp_avg"], state["exp_avg_sq"], state["step"]
        mean.lerp_(g, 1 - beta1)
        square.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        root = (square.sqrt() / math.sqrt(1 - beta2**step)).add_(group["eps"])
        update = mean / (1 - beta1**step) / root
        rate = torch.ones((), dtype=w.dtype, device=w.device)
        if w.ndim > 1:
            update.add_(w, alpha=group["weight_decay"])
            of_w, of_update = torch.linalg.vector_norm(w), torch.linalg.vector_norm(update)
            usable = (of_w > 0) & (of_update > 0)
            rate = torch.where(usable, of_w / of_update, rate)
        w.sub_(update.mul_(rate * group["lr"]))


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
