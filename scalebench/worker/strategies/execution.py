"""How a rank does its arithmetic, whatever the strategy: precision, compilation, recomputation."""

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from scalebench.spec import Execution
from scalebench.spec.workload import Workload
from scalebench.worker.process.failure import Unsupported, building_nothing

PRODUCTS = (
    *(torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default),
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
)
"""Operators whose results selective checkpointing keeps: most of the FLOPs are in them."""


def prepare_module(
    workload: Workload, execution: Execution, device: torch.device
) -> torch.nn.Module:
    """Return the workload's module on its device, recomputing and compiled as asked.

    Raises:
        Unsupported: Checkpointing was asked for and the workload names no blocks.
    """
    module = workload.module.to(device)
    recompute_blocks(workload, execution)
    if execution.compile:
        module.compile()
    return module


def prepare_blocks(workload: Workload, execution: Execution) -> torch.nn.Module:
    """Return the workload's module for a strategy that wraps its blocks one by one.

    Each block is compiled by itself, since between them the strategy communicates. Parameters
    stay where they are: the strategy moves each group to the device as it divides it, so that the
    whole model never has to fit there.

    Raises:
        Unsupported: Checkpointing was asked for and the workload names no blocks.
    """
    recompute_blocks(workload, execution)
    if execution.compile:
        for module in workload.blocks or (workload.module,):
            module.compile()
    return workload.module


def recompute_blocks(workload: Workload, execution: Execution) -> None:
    """Have the blocks recompute their activations in the backward pass, if asked for."""
    if not execution.checkpointing:
        return
    if not workload.blocks:
        raise Unsupported("activation checkpointing needs a workload that names its blocks")
    options: dict[str, Any] = {"use_reentrant": False}
    if execution.checkpointing == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, list(PRODUCTS))
    for block in workload.blocks:
        block.forward = partial(checkpoint, block.forward, **options)


def precision(execution: Execution, device: torch.device) -> AbstractContextManager[object]:
    """Return the context of the forward pass: autocast to 16 bits, or nothing."""
    if execution.autocast:
        half = torch.float16 if execution.autocast == "float16" else torch.bfloat16
        return torch.autocast(device.type, dtype=half)
    return nullcontext()


def make_optimizer(
    workload: Workload, parameters: Iterable[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    """Return the workload's optimizer, or fused AdamW.

    Raises:
        Unsupported: It compiles something when it is made, as DeepSpeed's do, and that failed.
    """
    if workload.optimizer is not None:
        with building_nothing():
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
    """Return whether float32 matrix products and convolutions run in TF32 now.

    Ask after the user's module was built: it may set either. ``fp32_precision`` follows all of
    torch's switches; ``allow_tf32`` raises an error where the newer ones were used.
    ``NVIDIA_TF32_OVERRIDE=0`` forbids it to NVIDIA's libraries, whatever torch asks for. Source:
    NVIDIA's cuDNN documentation, ``cudnnMathType_t``.
    """
    forbidden = os.environ.get("NVIDIA_TF32_OVERRIDE") == "0"
    can = device.type == "cuda" and not forbidden and torch.cuda.is_tf32_supported()
    backends: Any = torch.backends
    return {
        "matmul_tf32": can and backends.cuda.matmul.fp32_precision == "tf32",
        "convolution_tf32": can and backends.cudnn.conv.fp32_precision == "tf32",
    }
