"""What ranks have to play for a step, and what messages cost beside work by what they played."""

from typing import get_args

import numpy as np

from scalebench.costmodel.links.times import LinkTimes, NoFit
from scalebench.costmodel.replay import CommRequest, replay
from scalebench.costmodel.step import StepShape
from scalebench.records.probes import RehearsedStep
from scalebench.spec.collectives import CollectiveName
from scalebench.spec.probes import RehearsedOperation, StepRehearsal


def rehearsal_of_step(shape: StepShape, world_size: int) -> StepRehearsal:
    """Return what ranks have to play for a step of this very shape.

    Raises:
        NoFit: It sends nothing, not to all ranks, or what is no collective.
    """
    if not shape.requests or shape.computing_s <= 0:
        raise NoFit("nothing is sent")
    if any(request.num_ranks not in (None, world_size) for request in shape.requests):
        raise NoFit("groups of fewer ranks are not played")
    if any(request.op not in get_args(CollectiveName) for request in shape.requests):
        raise NoFit("not all that is sent is a collective")
    return StepRehearsal(
        computing_s=shape.computing_s,
        operations=tuple(
            RehearsedOperation.model_validate(
                {
                    "op": request.op,
                    "size_bytes": max(1, request.size_bytes),
                    "ready_s": request.ready_s,
                    "needed_s": request.needed_s,
                }
            )
            for request in shape.requests
        ),
    )


def longer_than_replayed_s(played: RehearsedStep, link: LinkTimes) -> float:
    """Return how much more of a played step its messages took than its replay says, seconds.

    Raises:
        NoFit: Nothing tells what an operation takes.
    """
    plan = played.plan
    requests = [CommRequest(o.op, o.size_bytes, o.ready_s, o.needed_s) for o in plan.operations]
    takes_s = [link(r.op, played.world_size, r.size_bytes).time_s for r in requests]
    stalled_s = replay(requests, takes_s, plan.computing_s).stalled_s
    return float(np.median(played.exposed_s)) - stalled_s
