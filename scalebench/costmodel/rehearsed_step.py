"""What ranks have to play for a step, and what messages cost during work by what they played."""

from typing import cast, get_args

import numpy as np

from scalebench.costmodel.layers.replay import CommRequest, replay
from scalebench.costmodel.links.times import LinkTimes, NoFit
from scalebench.costmodel.step import StepShape
from scalebench.records.measured.probes import RehearsedStep
from scalebench.spec import AXES, Mesh, Strategy
from scalebench.spec.collectives import IN_GROUPS, CollectiveName
from scalebench.spec.probes import RehearsedOperation, StepRehearsal


def rehearsal_of_step(
    shape: StepShape, strategy: Strategy, world_size: int, busy: float | None = None
) -> StepRehearsal:
    """Return what ranks have to play for a step of this very shape.

    Args:
        shape: Of the step.
        strategy: Tells which ranks are a group.
        world_size: N.
        busy: Processor seconds of a second of computation; None: the rank is busy all the time.

    Raises:
        NoFit: It sends nothing, not to ranks that are known, or what is no collective.
    """
    if not shape.requests or shape.computing_s <= 0:
        raise NoFit("nothing is sent")
    if any(request.op not in get_args(CollectiveName) for request in shape.requests):
        raise NoFit("not all that is sent is a collective")
    return StepRehearsal(
        computing_s=shape.computing_s,
        computing_cpu_s=None if busy is None else busy * shape.computing_s,
        operations=tuple(
            RehearsedOperation(
                op=cast(CollectiveName, request.op),
                size_bytes=max(1, request.size_bytes),
                ready_s=request.ready_s,
                needed_s=request.needed_s,
                groups=groups_of(request, strategy, world_size),
            )
            for request in shape.requests
        ),
    )


def groups_of(
    request: CommRequest, strategy: Strategy, world_size: int
) -> tuple[tuple[int, ...], ...] | None:
    """Return the ranks of each group that does an operation; None: all ranks do it together.

    Raises:
        NoFit: It is not known which ranks they are.
    """
    if request.num_ranks in (None, world_size):
        return None
    axes = [axis for axis in AXES if axis in (request.axis or "").split("_")]
    if not isinstance(strategy, Mesh) or strategy.expert > 1 or request.op not in IN_GROUPS:
        raise NoFit("groups of fewer ranks are played on meshes alone")
    groups = strategy.groups_along(world_size, *axes)
    if len(groups[0]) != request.num_ranks:
        raise NoFit(f"the mesh has no groups of {request.num_ranks} ranks along {request.axis}")
    return groups


def longer_than_replayed_s(played: RehearsedStep, link: LinkTimes) -> float:
    """Return how much more of a played step its messages took than its replay says, seconds.

    Raises:
        NoFit: Nothing tells what an operation takes.
    """
    plan = played.plan
    stalled_s = stalled_of(plan, played.world_size, link)
    return float(np.median(played.exposed_s)) - stalled_s


def stalled_of(plan: StepRehearsal, world_size: int, link: LinkTimes) -> float:
    """Return how long the computation of a played step waits for the link, as replayed, seconds.

    Raises:
        NoFit: Nothing tells what an operation takes.
    """
    requests = [CommRequest(o.op, o.size_bytes, o.ready_s, o.needed_s) for o in plan.operations]
    takes_s = [link(o.op, o.num_ranks or world_size, o.size_bytes).time_s for o in plan.operations]
    return replay(requests, takes_s, plan.computing_s).stalled_s
