"""Training in float16: the loss is scaled, so that small gradients do not become zero.

A gradient below 6e-8 is zero in float16. So the loss is multiplied by a scale before backward, and
the gradients, which are float32 like the parameters, are divided by it before the update. Where the
scale was too large some of them are infinite: the step is skipped on every rank, and the scale
halved; after 2,000 steps without that it is doubled (Micikevicius et al. 2018, "Mixed Precision
Training"; ``torch.amp.GradScaler``).

Every rank must skip the same steps. Gradients that were all-reduced are infinite everywhere. Of
divided ones a rank sees its part: FSDP2's DTensors reduce what was found over their mesh, FSDP1
needs ``ShardedGradScaler``.
"""

from itertools import pairwise
from typing import Any

import torch
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from scalebench.spec import Execution, Fsdp1

LEAST_SCALE = 2.0**-24
"""With less no gradient is finite, whatever the scale."""


class LossScaler:
    """Scales the loss, skips steps whose gradients overflow, and remembers the scale."""

    def __init__(self, strategy: Execution, device: torch.device) -> None:
        sharded = isinstance(strategy, Fsdp1)
        self.scaler = (ShardedGradScaler if sharded else torch.amp.GradScaler)(device.type)
        self._one = torch.ones((), device=device)
        self._fresh: list[torch.Tensor] = []
        self._scales: list[float] = []

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss times the scale."""
        return self.scaler.scale(loss)

    def step(self, stepper: Any) -> None:
        """Divide the gradients by the scale; update, unless one is not finite; set the scale."""
        self._fresh.append(self.scaled(self._one))
        self.scaler.unscale_(stepper)
        self.scaler.step(stepper)
        self.scaler.update()

    def unscale(self, optimizer: torch.optim.Optimizer) -> bool:
        """Divide the gradients by the scale, without an update; return whether all are finite.

        Raises:
            FloatingPointError: They are not, at any scale.
        """
        before = self.scale
        self.scaler.unscale_(optimizer)
        self.scaler.update()
        return self.scale >= before

    @property
    def scale(self) -> float:
        """The scale of the step to come, less than before if the last was skipped.

        Asking for it waits for the device.

        Raises:
            FloatingPointError: Gradients were not finite at any scale.
        """
        scale = float(self.scaler.get_scale())
        if scale < LEAST_SCALE:
            raise FloatingPointError(
                f"float16: gradients are not finite at a loss scale of {scale:.2g} either; train "
                "in bfloat16 or float32 (--dtype)"
            )
        return scale

    def note(self) -> None:
        """Bring the scales of the latest steps from the device; waits for it."""
        if self._fresh:
            self._scales += torch.stack(self._fresh).tolist()
            self._fresh.clear()
            _ = self.scale  # too small: no step is done any more

    @property
    def stable_from(self) -> int:
        """Steps up to the last one that was skipped."""
        scales = [*self._scales, self.scale]
        return max((i + 1 for i, (a, b) in enumerate(pairwise(scales)) if b < a), default=0)

    def history(self) -> list[tuple[int, float]]:
        """Return the steps from which on each scale was in force; waits for the device.

        The last one may be that of the step to come. Where the scale falls, the step before was
        skipped.
        """
        self.note()
        scales = [*self._scales, self.scale]
        return [
            (step, scale)
            for step, scale in enumerate(scales)
            if step == 0 or scale != scales[step - 1]
        ]


def loss_scaler(strategy: Execution, device: torch.device) -> LossScaler | None:
    """Return what scales the loss of a training in float16; None: it trains in another format."""
    return LossScaler(strategy, device) if strategy.autocast == "float16" else None
