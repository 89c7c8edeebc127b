"""Linear layers that take as long as on a slow device, and leave the core to what moves the bytes.

The arithmetic is real, so gradients and losses are checked as always. On top of it each layer
waits in proportion to the multiplications of its part on this rank: once in forward, twice in
backward. So eight hosts that share two cores compute at the same time, as eight devices would.
"""

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from scalebench.worker.workloads.loaded import wait

BACKWARD = 2
"""Multiplications of backward for each of forward: one gives the gradient of the input, one that of
the weight."""


def pace(module: nn.Module, seconds_per_multiplication: float) -> None:
    """Have every linear layer of a module wait, before it is divided."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_hook(partial(_wait_for, seconds_per_multiplication))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _wait_for(seconds_each: float, layer: nn.Module, _: Any, output: torch.Tensor) -> None:
    assert isinstance(layer, nn.Linear)
    seconds = seconds_each * local(output).numel() * local(layer.weight).shape[-1]
    wait(seconds)

    def in_backward(_: torch.Tensor) -> None:
        wait(BACKWARD * seconds)

    if output.requires_grad:
        output.register_hook(in_backward)
