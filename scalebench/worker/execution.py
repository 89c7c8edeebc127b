"""How a rank does its arithmetic, whatever the strategy: precision, compilation, recomputation."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch.utils.checkpoint import checkpoint

from scalebench.spec import Execution
from scalebench.worker.failure import Unsupported
from scalebench.workload import Workload


def prepare_module(
    workload: Workload, execution: Execution, device: torch.device
) -> torch.nn.Module:
    """Return the workload's module on its device, recomputing and compiled as asked.

    Raises:
        Unsupported: Checkpointing was asked for and the workload names no blocks.
    """
    module = workload.module.to(device)
    if execution.checkpointing:
        if not workload.blocks:
            raise Unsupported("activation checkpointing needs a workload that names its blocks")
        for block in workload.blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    if execution.compile:
        module.compile()
    return module


def precision(execution: Execution, device: torch.device) -> AbstractContextManager[object]:
    """Return the context of the forward pass: bfloat16 autocast, or nothing."""
    if execution.autocast:
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


def make_optimizer(
    workload: Workload, parameters: Iterable[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    """Return the workload's optimizer, or fused AdamW."""
    if workload.optimizer is not None:
        return workload.optimizer(parameters)
    return torch.optim.AdamW(parameters, lr=1e-3, fused=True)
