"""torch's schedules by name, and the order that torch has for them."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

from scalebench.costmodel.pipelines.orders import STYLES
from scalebench.costmodel.pipelines.schedule import Action, Schedule
from scalebench.worker.process.failure import Unsupported

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
