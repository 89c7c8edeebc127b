"""Pipelines of torch: schedules by name, which rank has which stages, marks in the trace.

Marks in the trace around every forward and backward pass of a pipeline's stages.

The stage object's own methods, and torch's waiting for sends and receives, are wrapped while steps
are traced, and put back afterwards: the clean window knows nothing of it. The profiler's
annotations of torch's schedules are no help: they differ from schedule to schedule, and 1F1B has
none.

Who is where: N ranks as pipelines side by side, and the stages of each rank.

The ranks form a mesh of two axes, data × pipeline; the ranks of a pipeline are neighbours, unless a
larger mesh says which ranks are in line.

torch's schedules by name, and the order that torch has for them.

A workload's loss, taken apart: what the model is called with, and what is made of its output.

A workload's ``loss(module, batch)`` calls the module. In a pipeline the first stage needs the
arguments of that call, and on the last the output is there already. So the loss is given
stand-ins: one that keeps what it is called with and goes no further, one that returns the output.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import OpType  # type: ignore[attr-defined]
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.profiler import record_function

from scalebench.costmodel.pipeline_schedule import STYLES, Action, Schedule
from scalebench.records.measured.trace import TracedAction
from scalebench.spec import Pipeline
from scalebench.trace.events import Events, Intervals
from scalebench.trace.operations.kernel_launches import runtime_calls
from scalebench.worker.process.context import RankContext, dtype_of
from scalebench.worker.process.failure import Unsupported

PREFIX = "scalebench.action."
BLOCKED = "scalebench.blocked"
BLOCKED_SENDING = "scalebench.blocked_sending"
"""Around waiting for a receive, and for a send: gloo's lasts until the other rank takes it."""
V_SHAPED = ("zbv", "dualpipev")
"""Schedules in which the second chunks lie in the opposite order: the first rank has the first
and the last stage."""
Loss = Callable[[torch.nn.Module, Any], torch.Tensor]


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


class Layout:
    """The mesh, as one rank sees it.

    Attributes:
        num_ranks: Ranks of a pipeline, p.
        first_rank: The first rank of this rank's pipeline.
        rank_of: Stage → rank of this pipeline that holds it, counted over all ranks.
        own: The stages of this rank, in the order in which a microbatch comes to them.
        lines: The ranks of each pipeline, in order; ``line``: of this rank's.
        across: Process group of the ranks that hold the same stages; None: there is one pipeline,
            or the lines are part of a larger mesh, which averages along its own dimensions.
        groups: Name and number of ranks of that group.
    """

    def __init__(
        self, strategy: Pipeline, context: RankContext, lines: Sequence[Sequence[int]] | None = None
    ) -> None:
        world_size, rank = context.cell.world_size, context.rank
        self.lines = lines or side_by_side(world_size, strategy.pipelines(world_size))
        self.num_pipelines = len(self.lines)
        self.line = next(line for line in self.lines if rank in line)
        self.num_ranks = len(self.line)
        self.first_rank = self.line[0]
        self.num_stages = self.num_ranks * strategy.chunks
        self.rank_of = [
            self.line[place]
            for place in places(self.num_ranks, strategy.chunks, strategy.schedule in V_SHAPED)
        ]
        self.own = [stage for stage, holder in enumerate(self.rank_of) if holder == rank]
        self.has_first = 0 in self.own
        self.timeout = timedelta(seconds=context.cell.collective_timeout_s)
        self.pipeline: dist.ProcessGroup | None = dist.group.WORLD
        self.across: dist.ProcessGroup | None = None
        self.groups: dict[str, int] = {}
        if self.num_pipelines > 1:
            self.pipeline = self.new_group(range(self.num_ranks))
        if self.num_pipelines > 1 and lines is None:
            for place in range(self.num_ranks):
                group = dist.new_group([line[place] for line in self.lines], timeout=self.timeout)
                if self.line[place] == rank:
                    self.across = group
                    self.groups = {f"pipelines, place {place}": self.num_pipelines}

    def new_group(self, members: Iterable[int]) -> dist.ProcessGroup | None:
        """Make a process group of some places of each pipeline; None: this rank is in none.

        All ranks have to call it alike.
        """
        members, mine = sorted(members), None
        if len(members) == dist.get_world_size():
            return dist.group.WORLD
        for line in self.lines:
            ranks = [line[place] for place in members]
            group = dist.new_group(ranks, timeout=self.timeout)
            if dist.get_rank() in ranks:
                mine = group
        return mine

    def places_of(self, stages: Iterable[int]) -> tuple[int, ...]:
        """Return the places in the pipeline of the ranks that hold some stages."""
        return tuple(sorted({self.line.index(self.rank_of[stage]) for stage in stages}))

    def neighbour(self, stage: int, way: int) -> int | None:
        """Return the rank of the stage before (-1) or after (1); None: it is this one, or none."""
        there = stage + way
        if not 0 <= there < self.num_stages or there in self.own:
            return None
        return self.rank_of[there]

    def average_over_pipelines(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Average the gradients over the pipelines."""
        if self.across is None:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        works = [dist.all_reduce(g, group=self.across, async_op=True) for g in gradients]
        for gradient, work in zip(gradients, works, strict=True):
            work.wait()
            gradient /= self.num_pipelines


HEADER_BYTES = 256
"""What is sent before a tensor: its type and shape as JSON, padded with blanks."""


def send(tensor: torch.Tensor, rank: int) -> None:
    """Send a tensor of any shape to a rank that calls `receive`."""
    about = json.dumps([str(tensor.dtype), *tensor.shape])
    header = bytearray(about.ljust(HEADER_BYTES).encode())
    dist.send(torch.frombuffer(header, dtype=torch.uint8).to(tensor.device), rank)
    dist.send(tensor.contiguous(), rank)


def receive(rank: int, device: torch.device) -> torch.Tensor:
    """Return the tensor that a rank sends with `send`, on a device."""
    header = torch.empty(HEADER_BYTES, dtype=torch.uint8, device=device)
    dist.recv(header, rank)
    dtype, *shape = json.loads(bytes(header.tolist()))
    tensor = torch.empty(shape, dtype=dtype_of(dtype), device=device)
    dist.recv(tensor, rank)
    return tensor


def side_by_side(world_size: int, pipelines: int) -> list[list[int]]:
    """Return the ranks of each pipeline, neighbours on the machine."""
    each = world_size // pipelines
    return [[*range(first, first + each)] for first in range(0, pipelines * each, each)]


def places(num_ranks: int, chunks: int, v_shaped: bool) -> list[int]:
    """Return the place in its pipeline of each stage."""
    forth = list(range(num_ranks))
    return [
        place
        for chunk in range(chunks)
        for place in (forth[::-1] if v_shaped and chunk % 2 else forth)
    ]


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
