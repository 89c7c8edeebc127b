"""How a rank does its arithmetic, whatever the strategy: precision, compilation, recomputation.

Training in float16: the loss is scaled, so that small gradients do not become zero.

A gradient below 6e-8 is zero in float16. So the loss is multiplied by a scale before backward, and
the gradients, which are float32 like the parameters, are divided by it before the update. Where the
scale was too large some of them are infinite: the step is skipped on every rank, and the scale
halved; after 2,000 steps without that it is doubled (Micikevicius et al. 2018, "Mixed Precision
Training"; ``torch.amp.GradScaler``).

Every rank must skip the same steps. Gradients that were all-reduced are infinite everywhere. Of
divided ones a rank sees its part: FSDP2's DTensors reduce what was found over their mesh, FSDP1
needs ``ShardedGradScaler``.
"""

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from scalebench.spec import Execution, Fsdp1
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
LEAST_SCALE = 2.0**-24
"""With less no gradient is finite, whatever the scale."""


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
