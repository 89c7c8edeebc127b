"""The shape of a step that was measured among several ranks: its exposed communication taken out.

For what sends nothing at N=1, so that only several ranks show when the computation asks, and what
for. Every moment is told by how far the computation had come: time in which a rank did nothing but
communicate does not count. Transfer and wait are both taken out, so a prediction that starts here
holds no waiting, as one that starts from N=1.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scalebench.analysis.attribution import LaunchAttribution
from scalebench.analysis.step_shape import NoShape, end_of_backward, mean_of, ready_ns
from scalebench.analysis.steps import launch_step_s
from scalebench.costmodel.replay import CommRequest
from scalebench.costmodel.step import StepShape
from scalebench.records.rank import RankRecord
from scalebench.records.trace import Trace, TracedOperation
from scalebench.trace.breakdown import covered_by
from scalebench.trace.intervals import (
    Intervals,
    clip,
    intersect,
    intervals,
    length_s,
    subtract,
    union,
)

DIVIDES_ITSELF = (
    "the script divides the model itself over its ranks (tensor or pipeline parallelism): what a "
    "rank computes at other sizes does not follow from N={n}"
)


class _Moment(NamedTuple):
    """One operation, by how far the computation had come; seconds after the step began."""

    operation: TracedOperation
    ready_s: float
    ended_s: float
    ended_exposed: bool


class _Step(NamedTuple):
    """One traced step; seconds."""

    length_s: float
    computing_s: float
    moments: list[_Moment]


def shape_among_ranks(launches: Sequence[LaunchAttribution]) -> StepShape:
    """Return the shape of the typical traced step, of the rank that computes longest.

    Args:
        launches: Traced, all at the same N of at least 2.

    Raises:
        NoShape: There is no launch, the steps differ in what they send, a size is not known, or it
            is not known how the work of a rank and its groups change with N.
    """
    if not launches:
        raise NoShape("no launch of the script on several ranks was traced")
    size = launches[0].result.cell.world_size
    return mean_of([_shape_of_launch(launch) for launch in launches], size)


def _shape_of_launch(launch: LaunchAttribution) -> StepShape:
    size = launch.result.cell.world_size
    _check_division(launch.result.ranks, size)
    on_device = launch.result.cell.backend == "nccl"
    of_ranks = [
        [_look_at(trace, index, on_device, size) for index in launch.typical_steps]
        for trace in launch.traces.values()
    ]
    steps = max(of_ranks, key=lambda found: sum(step.computing_s for step in found))
    kinds = {tuple((m.operation.kind, m.operation.num_bytes) for m in s.moments) for s in steps}
    if len(kinds) > 1:
        raise NoShape(f"the traced steps at N={size} differ in what they send")
    if not steps[0].moments:
        raise NoShape(f"the trace shows no communication at N={size} that could be replayed")
    step_s = launch_step_s(launch.result)

    def mean(seconds: Sequence[Sequence[float]]) -> list[float]:
        """Return the mean over the steps, each as long as a clean one."""
        longer = [step_s / step.length_s for step in steps]
        return [float(m) for m in np.mean(np.array(seconds) * np.array(longer)[:, None], axis=0)]

    (computing_s,) = mean([[step.computing_s] for step in steps])
    ready = mean([[m.ready_s for m in step.moments] for step in steps])
    ended = mean([[m.ended_s for m in step.moments] for step in steps])
    stopped = np.mean([[m.ended_exposed for m in step.moments] for step in steps], axis=0) > 0.5
    operations = [m.operation for m in steps[0].moments]
    batch_s = end_of_backward(operations, ready, computing_s)
    requests = []
    for operation, at, end, waited in zip(operations, ready, ended, stopped, strict=True):
        hidden_until = batch_s if operation.phase == "backward" else end
        needed = end if waited else max(end, hidden_until)
        at = min(at, computing_s)
        needed = min(max(needed, at), computing_s)
        requests.append(CommRequest(operation.kind, operation.num_bytes or 0, at, needed))
    return StepShape(tuple(requests), batch_s, computing_s - batch_s, launch.result.cell.rank_batch)


def _look_at(trace: Trace, index: int, on_device: bool, world_size: int) -> _Step:
    """Return one step of a rank.

    An operation's result is needed when the computation stands still for it: where it ends while
    nothing is computed. One that ends during the computation was hidden; when it was needed at the
    earliest is then when it ended.
    """
    start, end = trace.steps[index]
    sent = [op for op in trace.operations if op.step == index]
    _check_operations(sent, world_size)
    sent = [op for op in sent if op.num_bytes]
    computing = union(intervals(trace.compute), intervals(trace.codec))
    exposed = clip(subtract(covered_by(sent), computing), start, end)

    def computed_s(moment: int) -> float:
        moment = min(max(moment, start), end)
        return (moment - start) / 1e9 - length_s(clip(exposed, start, moment))

    moments = [
        _Moment(
            op,
            computed_s(ready_ns(op, on_device)),
            computed_s(op.end_ns),
            _covers(exposed, op.end_ns - 1) or op.end_ns >= end,
        )
        for op in sent
    ]
    moments.sort(key=lambda m: (m.ready_s, m.operation.ordinal))
    return _Step((end - start) / 1e9, computed_s(end), moments)


def _covers(spans: Intervals, moment: int) -> bool:
    return len(intersect(spans, intervals([(moment, moment + 1)]))) > 0


def _check_operations(operations: Sequence[TracedOperation], world_size: int) -> None:
    for op in operations:
        if op.kind in ("send", "recv"):
            raise NoShape(DIVIDES_ITSELF.format(n=world_size))
        if op.num_bytes is None and op.kind != "barrier":
            raise NoShape(f"the trace at N={world_size} does not say how much {op.name} sends")
        if op.num_bytes and op.group_size is not None and op.group_size < world_size:
            raise NoShape(
                f"at N={world_size} the script sends in groups of {op.group_size}: how large they "
                "are at other sizes is not known"
            )


def _check_division(ranks: Sequence[RankRecord], world_size: int) -> None:
    """Raise NoShape where what a rank computes shrinks by a law that one size does not show."""
    for rank in ranks:
        stored = rank.facts.get("wrappers") or ()
        kinds = {one.get("kind") for one in stored if isinstance(one, dict)}
        by_hand = "DTensor" in kinds and not kinds & {"FSDPModule", "FullyShardedDataParallel"}
        groups = rank.facts.get("groups") or ()
        megatron = any(
            str(one.get("name", "")).startswith("Megatron") and (one.get("ranks") or 1) > 1
            for one in groups
            if isinstance(one, dict)
        )
        if by_hand or megatron or kinds & {"_PipelineStageBase", "_PipelineSchedule"}:
            raise NoShape(DIVIDES_ITSELF.format(n=world_size))
