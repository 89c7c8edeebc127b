"""Marks in the trace around every forward and backward pass of a pipeline's stages.

The stage object's own methods are wrapped while steps are traced, and put back afterwards: the
clean window knows nothing of it. The profiler's annotations of torch's schedules are no help: they
differ from schedule to schedule, and 1F1B has none.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch.profiler import record_function

from scalebench.costmodel.schedule import Action

PREFIX = "scalebench.action."


def mark_of(action: Action) -> str:
    """Return the name of an action's mark."""
    return f"{PREFIX}{action.kind}.{action.stage}.{action.microbatch}"


def action_of(name: str) -> Action | None:
    """Return the action that a mark stands for; None: it is another mark."""
    if not name.startswith(PREFIX):
        return None
    kind, stage, microbatch = name.removeprefix(PREFIX).split(".")
    return Action(int(stage), kind, int(microbatch))  # type: ignore[arg-type]


@contextmanager
def marked(stages: Sequence[Any]) -> Iterator[None]:
    """Mark what stages (torch's ``PipelineStage``) do inside the block."""
    for stage in stages:
        index = stage.stage_index
        stage.forward_one_chunk = _marking(stage.forward_one_chunk, index, "F")
        stage.backward_one_chunk = _marking(stage.backward_one_chunk, index, "B")
        stage.backward_weight_one_chunk = _marking(stage.backward_weight_one_chunk, index, "W")
    try:
        yield
    finally:
        for stage in stages:
            del stage.forward_one_chunk
            del stage.backward_one_chunk
            del stage.backward_weight_one_chunk


def _marking(method: Callable[..., Any], stage: int, kind: str) -> Callable[..., Any]:
    def run(microbatch: int, *given: Any, **named: Any) -> Any:
        # A backward pass that leaves the weights for later is called so.
        done = "I" if kind == "B" and not named.get("full_backward", True) else kind
        action = Action(stage, done, microbatch)  # type: ignore[arg-type]
        with record_function(mark_of(action)):
            return method(microbatch, *given, **named)

    return run
