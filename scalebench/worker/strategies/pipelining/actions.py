"""Marks in the trace around every forward and backward pass of a pipeline's stages.

The stage object's own methods, and torch's waiting for sends and receives, are wrapped while steps
are traced, and put back afterwards: the clean window knows nothing of it. The profiler's
annotations of torch's schedules are no help: they differ from schedule to schedule, and 1F1B has
none.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch._C._distributed_c10d import OpType  # type: ignore[attr-defined]
from torch.distributed.pipelining import schedules
from torch.profiler import record_function

from scalebench.costmodel.pipelines.schedule import Action
from scalebench.records.measured.trace import TracedAction
from scalebench.trace.events import Events
from scalebench.trace.intervals import Intervals
from scalebench.trace.operations.kernel_launches import runtime_calls

PREFIX = "scalebench.action."
BLOCKED = "scalebench.blocked"
BLOCKED_SENDING = "scalebench.blocked_sending"
"""Around waiting for a receive, and for a send: gloo's lasts until the other rank takes it."""


def mark_of(action: Action) -> str:
    """Return the name of an action's mark."""
    return f"{PREFIX}{action.kind}.{action.stage}.{action.microbatch}"


def action_of(name: str) -> Action | None:
    """Return the action that a mark stands for; None: it is another mark."""
    if not name.startswith(PREFIX):
        return None
    kind, stage, microbatch = name.removeprefix(PREFIX).split(".")
    return Action(int(stage), kind, int(microbatch))  # type: ignore[arg-type]


def traced_actions(
    events: Events, steps: Intervals, first: int, origin_ns: int
) -> list[TracedAction]:
    """Return the actions of traced steps, in the order in which the rank began them.

    On a GPU an action lasts from the first to the last kernel that it launched.

    ``steps``: beginning and end of the steps that count, shape ``[steps, 2]``. ``first``: number of
    the first of them in the trace.
    """
    marks = events.of("user_annotation")
    known = {code: one for code, name in enumerate(events.names) if (one := action_of(name))}
    kernels = events.of("kernel")
    launched = runtime_calls(events, kernels)[0] if len(kernels) else None
    found: list[TracedAction] = []
    for mark in marks[np.argsort(events.start_ns[marks], kind="stable")]:
        action = known.get(int(events.name[mark]))
        begin, end = int(events.start_ns[mark]), int(events.end_ns[mark])
        if action is None:
            continue
        if launched is not None:
            own = kernels[(launched >= begin) & (launched < end)]
            if len(own) == 0:
                continue
            begin, end = int(events.start_ns[own].min()), int(events.end_ns[own].max())
        step = int(np.searchsorted(steps[:, 0], begin, side="right")) - 1
        if step < 0 or begin >= steps[step, 1]:
            continue
        found.append(
            TracedAction(
                **action._asdict(),
                step=first + step,
                start_ns=begin - origin_ns,
                end_ns=end - origin_ns,
            )
        )
    return found


@contextmanager
def marked(stages: Sequence[Any]) -> Iterator[None]:
    """Mark what stages (torch's ``PipelineStage``) do inside the block."""
    for stage in stages:
        index = stage.stage_index
        stage.forward_one_chunk = _marking(stage.forward_one_chunk, index, "F")
        stage.backward_one_chunk = _marking(stage.backward_one_chunk, index, "B")
        stage.backward_weight_one_chunk = _marking(stage.backward_weight_one_chunk, index, "W")
    wait = getattr(schedules, "_wait_batch_p2p", None)
    if wait is not None:
        schedules._wait_batch_p2p = _wait  # type: ignore[assignment]
    try:
        yield
    finally:
        if wait is not None:
            schedules._wait_batch_p2p = wait
        for stage in stages:
            del stage.forward_one_chunk
            del stage.backward_one_chunk
            del stage.backward_weight_one_chunk


def _wait(works: list[Any]) -> None:
    """Wait for sends and receives, one after the other as torch does, with a mark around each."""
    for work in works:
        with record_function(BLOCKED_SENDING if _is_send(work) else BLOCKED):
            work.wait()


def _is_send(work: Any) -> bool:
    """Tell whether a work is a send; not known, where this torch does not tell: no."""
    told = getattr(work, "_get_op_type", None)
    return told is not None and int(told()) == int(OpType.SEND)


def _marking(method: Callable[..., Any], stage: int, kind: str) -> Callable[..., Any]:
    def run(microbatch: int, *given: Any, **named: Any) -> Any:
        # A backward pass that leaves the weights for later is called so.
        done = "I" if kind == "B" and not named.get("full_backward", True) else kind
        action = Action(stage, done, microbatch)  # type: ignore[arg-type]
        with record_function(mark_of(action)):
            return method(microbatch, *given, **named)

    return run
