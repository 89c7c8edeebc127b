"""LARS: SGD with momentum whose rate is adapted in each layer (You, Gitman & Ginsburg 2017)."""

from collections.abc import Iterable

import torch


class Lars(torch.optim.Optimizer):
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

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take a step; nothing in it waits for the device."""
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is not None:
                    self._update(w, w.grad, group)

    def _update(self, w: torch.Tensor, g: torch.Tensor, group: dict[str, float]) -> None:
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
