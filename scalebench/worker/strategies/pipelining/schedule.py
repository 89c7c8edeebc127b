"""torch's schedules by name, and the order that torch has for them.

A workload's loss, taken apart: what the model is called with, and what is made of its output.

A workload's ``loss(module, batch)`` calls the module. In a pipeline the first stage needs the
arguments of that call, and on the last the output is there already. So the loss is given
stand-ins: one that keeps what it is called with and goes no further, one that returns the output.
"""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

from scalebench.costmodel.pipelines.orders import STYLES
from scalebench.costmodel.pipelines.schedule import Action, Schedule
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


LossOfMicrobatch = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def build_schedule(
    name: str,
    stages: Sequence[PipelineStage],
    microbatches: int,
    loss: LossOfMicrobatch | None = None,
) -> Any:
    """Return torch's schedule for a rank's stages.

    The loss is scaled by its caller: torch would divide a parameter that two stages of a
    rank share twice.

    Raises:
        Unsupported: This torch has no such schedule, or refuses it.
    """
    style = STYLES[name]
    try:
        make: Any = get_schedule_class(style.torch_name)
        given = stages[0] if style.chunks == "one" else list(stages)
        return make(given, microbatches, loss_fn=loss, scale_grads=False)
    except (ValueError, RuntimeError) as error:
        raise Unsupported(f"torch rejects the schedule {name}: {error}") from error


def ask_torch(name: str, num_ranks: int, microbatches: int, chunks: int) -> Schedule:
    """Return the order in which torch would run a schedule; nothing is run, no rank is there.

    Raises:
        Unsupported: This torch has no such schedule, or refuses it.
    """
    num_stages = num_ranks * chunks
    stages: list[Any] = [
        SimpleNamespace(
            num_stages=num_stages,
            group_size=num_ranks,
            group_rank=0,
            stage_index=index,
            submod=torch.nn.Identity(),
        )
        for index in range(chunks)
    ]
    order = build_schedule(name, stages, microbatches).pipeline_order
    return Schedule(name, microbatches, tuple(_actions(order[r]) for r in range(num_ranks)))


def _actions(order: Sequence[Any]) -> tuple[Action, ...]:
    """Return a rank's passes; torch does the parts of an overlapped pair one after the other."""
    single = [part for one in order if one is not None for part in one.sub_actions or (one,)]
    return tuple(
        Action(one.stage_index, one.computation_type.value, one.microbatch_index)
        for one in single
        if one.computation_type.value in ("F", "B", "I", "W")
    )
