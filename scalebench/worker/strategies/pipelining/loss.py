"""A workload's loss, taken apart: what the model is called with, and what is made of its output.

A workload's ``loss(module, batch)`` calls the module. In a pipeline the first stage needs the
arguments of that call, and on the last the output is there already. So the loss is given
stand-ins: one that keeps what it is called with and goes no further, one that returns the output.
"""

from collections.abc import Callable
from typing import Any

import torch

from scalebench.worker.process.failure import Unsupported

Loss = Callable[[torch.nn.Module, Any], torch.Tensor]


class _Called(BaseException):
    """The model was called. No `Exception`: a loss may catch those."""

    def __init__(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        super().__init__()
        self.inputs, self.named = inputs, named


class _KeepsInputs(torch.nn.Module):
    def forward(self, *inputs: Any, **named: Any) -> Any:
        raise _Called(inputs, named)


class _Returns(torch.nn.Module):
    def __init__(self, output: torch.Tensor) -> None:
        super().__init__()
        self.output = output

    def forward(self, *_: Any, **__: Any) -> torch.Tensor:
        return self.output


_keeps_inputs = _KeepsInputs()


def inputs_of(loss: Loss, batch: Any) -> tuple[torch.Tensor, ...]:
    """Return what a loss calls the model with; nothing is computed that comes after.

    Raises:
        Unsupported: It is not called, or with something else than tensors in order.
    """
    try:
        loss(_keeps_inputs, batch)
    except _Called as called:
        if called.named or not all(isinstance(one, torch.Tensor) for one in called.inputs):
            raise Unsupported(
                "a pipeline's first stage takes tensors: the workload's loss must call "
                "module(tensor, ...) with positional arguments"
            ) from None
        return called.inputs
    raise Unsupported(
        "the workload's loss does not call the module, so there is nothing to split into stages"
    )


def loss_of(loss: Loss, output: torch.Tensor, batch: Any) -> torch.Tensor:
    """Return the loss that a batch has when the model's output is this."""
    return loss(_Returns(output), batch)
