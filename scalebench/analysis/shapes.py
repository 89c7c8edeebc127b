"""The shape of a step, from traced launches: at one rank, among ranks, of a pipeline."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from scalebench.analysis.attribution import LaunchAttribution
from scalebench.analysis.rows.launches import Unavailable
from scalebench.analysis.steps import launch_step_s
from scalebench.costmodel.pipeline_step import PipelineShape
from scalebench.costmodel.stage_split import Layers, TiedParameter
from scalebench.costmodel.step import CommRequest, StepShape
from scalebench.grouping import totals
from scalebench.records.measured.rank import RankRecord
from scalebench.records.measured.trace import Trace, TracedOperation
from scalebench.spec import Pipeline
from scalebench.trace.breakdown import covered_by
from scalebench.trace.events import (
    Intervals,
    clip,
    intersect,
    intervals,
    length_s,
    subtract,
    union,
)


class NoShape(Unavailable):
    """A step whose shape is not known; the text says why."""


def shape_of(launches: Sequence[LaunchAttribution], may_be_silent: bool = False) -> StepShape:
    """Return the shape of the typical traced step of launches at N=1, as long as a clean one.

    Tracing makes a step longer; every moment of it is moved in proportion.

    Args:
        launches: Traced, at N=1.
        may_be_silent: The strategy asks for nothing at N=1: then there are no requests.

    Raises:
        NoShape: There is no launch, the steps differ in what they send, or a size is not known.
    """
    if not launches:
        raise NoShape("no launch of the strategy at N=1 was traced")
    return mean_of([_shape_of_launch(launch, may_be_silent) for launch in launches])


def mean_of(found: Sequence[StepShape], world_size: int = 1) -> StepShape:
    """Return the mean of the shapes of launches at the same N; raises NoShape if they differ."""
    kinds = {tuple((r.op, r.size_bytes) for r in shape.requests) for shape in found}
    if len(kinds) > 1:
        raise NoShape(f"the launches at N={world_size} differ in what they send")
    pairs = [[(r.ready_s, r.needed_s) for r in shape.requests] for shape in found]
    moments = np.mean(pairs, axis=0) if pairs[0] else []
    requests = tuple(
        request._replace(ready_s=float(ready), needed_s=float(needed))
        for request, (ready, needed) in zip(found[0].requests, moments, strict=True)
    )
    return replace(
        found[0],
        requests=requests,
        batch_s=float(np.mean([shape.batch_s for shape in found])),
        fixed_s=float(np.mean([shape.fixed_s for shape in found])),
        part_step_s={
            samples: float(np.mean([shape.part_step_s[samples] for shape in found]))
            for samples in found[0].part_step_s
        },
    )


def _shape_of_launch(launch: LaunchAttribution, may_be_silent: bool) -> StepShape:
    trace = launch.traces[0]
    on_device = launch.result.cell.backend == "nccl"
    steps = []
    for index in launch.typical_steps:
        start, end = trace.steps[index]
        sent = [op for op in trace.operations if op.step == index and op.num_bytes]
        asked = sorted((ready_ns(op, on_device) - start, op.ordinal, op) for op in sent)
        steps.append(((end - start) / 1e9, [(moment / 1e9, op) for moment, _, op in asked]))
    kinds = {tuple((op.kind, op.num_bytes) for _, op in sent) for _, sent in steps}
    if len(kinds) > 1:
        raise NoShape("the traced steps at N=1 differ in what they send")
    if not steps[0][1] and not may_be_silent:
        raise NoShape("the trace shows no communication at N=1 that could be replayed")
    step_s = launch_step_s(launch.result)
    shares = [[moment / length for moment, _ in sent] for length, sent in steps]
    moments = np.mean(shares, axis=0) * step_s
    operations = [op for _, op in steps[0][1]]
    batch_s = end_of_backward(operations, moments, step_s)
    requests = [
        CommRequest(op.kind, op.num_bytes or 0, *_when(op, float(moment), batch_s, step_s))
        for op, moment in zip(operations, moments, strict=True)
    ]
    beside = step_s / launch.paired_step_s
    parts = {samples: part_s * beside for samples, part_s in launch.part_step_s.items()}
    batch = launch.result.cell.rank_batch
    return StepShape(tuple(requests), batch_s, step_s - batch_s, batch, parts)


def ready_ns(operation: TracedOperation, on_device: bool) -> int:
    """Return when what is sent was there: on the CPU when it was asked for.

    On a GPU the host asks long before the device has computed it. NCCL's stream waits for that, and
    at N=1 for nothing else, so the operation's own beginning tells.
    """
    asked = None if on_device else operation.enqueued_ns
    return operation.start_ns if asked is None else asked


def end_of_backward(
    operations: Sequence[TracedOperation], moments: Sequence[float], step_s: float
) -> float:
    """Return when the last gradient is ready: the last moment at which backward asks."""
    backward = [m for op, m in zip(operations, moments, strict=True) if op.phase == "backward"]
    return float(max(backward)) if backward else step_s


def _when(
    operation: TracedOperation, moment_s: float, batch_s: float, step_s: float
) -> tuple[float, float]:
    """Return when an operation is asked for, and when the computation needs its result.

    What backward asks for is needed when backward is over: gradients, by the optimizer. What
    forward and optimizer ask for is needed at once.
    """
    if operation.phase == "backward":
        return min(moment_s, batch_s), batch_s
    return min(moment_s, step_s), min(moment_s, step_s)


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
    return mean_of([_shape_among(launch) for launch in launches], size)


def _shape_among(launch: LaunchAttribution) -> StepShape:
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


def pipeline_shape_of(strategy: Pipeline, launches: Sequence[LaunchAttribution]) -> PipelineShape:
    """Return the mean over launches at N=1.

    Raises:
        NoShape: No launch was traced whole, or the layers' costs are not known.
    """
    found = [_of_launch(launch) for launch in launches if launch.pipelines]
    if not found:
        raise NoShape("no launch of the pipeline at N=1 was traced completely")
    layers = layers_of(launches[0].result.ranks[0].facts)
    kinds = found[0][0]
    return PipelineShape(
        strategy=strategy,
        layers=layers,
        passes_s={kind: float(np.mean([passes[kind] for passes, *_ in found])) for kind in kinds},
        between_s=float(np.mean([between for _, between, _ in found])),
        after_s=float(np.mean([after for *_, after in found])),
        num_samples=launches[0].result.cell.rank_batch,
    )


def _of_launch(launch: LaunchAttribution) -> tuple[dict[str, float], float, float]:
    """Return the passes by kind, what lies before each, and what comes after them, seconds."""
    pipeline, trace = launch.pipelines[0], launch.traces[0]
    lengths, afters, actions = [], [], 0
    for step in launch.typical_steps:
        start, end = trace.steps[step]
        done = [action for action in trace.actions if action.step == step]
        if not done:
            raise NoShape("no launch of the pipeline at N=1 was traced completely")
        actions = len(done)
        lengths.append(end - start)
        afters.append(end - max(action.end_ns for action in done))
    traced_s, after_s = float(np.mean(lengths)) / 1e9, float(np.mean(afters)) / 1e9
    shorter = launch_step_s(launch.result) / traced_s
    passes = totals((kind, shorter * took) for (kind, _), took in pipeline.seconds.items())
    busy_s = pipeline.strategy.microbatches * sum(passes.values())
    between_s = max(shorter * (traced_s - after_s) - busy_s, 0.0) / actions
    return passes, between_s, shorter * after_s


def layers_of(facts: Mapping[str, Any]) -> Layers:
    """Return what a rank's fact ``layers`` says.

    Raises:
        NoShape: It says nothing, or not the sizes of the layers' outputs.
    """
    told: Any = facts.get("layers")
    try:
        layers = Layers(
            costs=tuple(map(float, told["costs"])),
            output_bytes=tuple(map(int, told["output_bytes"])),
            tied=tuple(
                TiedParameter(tuple(map(int, one["layers"])), int(one["num_bytes"]))
                for one in told["tied"]
            ),
            parameter_bytes=tuple(map(int, told.get("parameter_bytes", ()))),
            kept_bytes=tuple(map(int, told.get("kept_bytes", ()))),
        )
    except (TypeError, KeyError, ValueError):
        raise NoShape("the run does not record what the pipeline's layers cost") from None
    if not sum(layers.costs) > 0 or len(layers.output_bytes) != len(layers.costs):
        raise NoShape("the size of the tensors between the pipeline's layers is not known")
    return layers
