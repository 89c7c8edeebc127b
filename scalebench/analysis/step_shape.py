"""The shape of a strategy's step: when its computation asks for communication, and what for.

Read from launches at N=1, where a collective waits for no other rank and transfers nothing: what
is left is the computation, and the moments at which it asks.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scalebench.analysis.attribution import LaunchAttribution
from scalebench.analysis.rows.fields import Unavailable
from scalebench.analysis.steps import launch_step_s
from scalebench.costmodel.replay import CommRequest
from scalebench.costmodel.step import StepShape
from scalebench.records.trace import TracedOperation


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
