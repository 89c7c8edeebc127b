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
        checkpoint_blocks(workload)
    if execution.compile:
        module.compile()
    return module


def checkpoint_blocks(workload: Workload) -> None:
    """Have the workload's blocks recompute their activations in the backward pass.

    Raises:
        Unsupported: The workload names no blocks.
    """
    if not workload.blocks:
        raise Unsupported("activation checkpointing needs a workload that names its blocks")
    for block in workload.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


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


def optimizer_kind(optimizer: torch.optim.Optimizer) -> str:
    """Return the optimizer's class, and the option that adds to its state: SGD with momentum.

    The words are those of ``costmodel/memory.py``, which knows the size of the state by them.
    """
    name = type(optimizer).__name__
    options = [
        option
        for option in ("momentum", "amsgrad")
        if any(group.get(option) for group in optimizer.param_groups)
    ]
    return f"{name} with {' and '.join(options)}" if options else name


def tf32_in_force(device: torch.device) -> dict[str, bool]:
    """Return whether float32 matrix products and convolutions may run in TF32."""
    on_cuda = device.type == "cuda"
    return {
        "matmul_tf32": on_cuda and torch.backends.cuda.matmul.allow_tf32,
        "convolution_tf32": on_cuda and torch.backends.cudnn.allow_tf32,
    }
