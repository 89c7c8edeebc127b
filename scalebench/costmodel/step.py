"""Predict a step: the shape of a computation, the fitted link, and who waits for what.

A step with compressed gradients, from the one at N=1.

What is all-gathered grows with the number of ranks, and so does decoding it: every rank decodes
the messages of all. What is all-reduced stays as it is. Encoding does not depend on N.

Replay a step with communication in it: who waits for what, on a link that does one at a time.

A step is a computation that now and then asks for an operation, and at some later point cannot
go on without its result. Between the two the link works during the computation: what of it is
not hidden is the time by which the step grows. A bucket starts when it is ready and the link is
free; the step ends when the last bucket has.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import NamedTuple, cast, get_args

import numpy as np
from scipy.optimize import nnls

from scalebench.costmodel.links.fitted import LinkTime, LinkTimes, NoFit
from scalebench.records.measured.probes import RehearsedStep
from scalebench.spec import AXES, Mesh, Strategy
from scalebench.spec.base import IN_GROUPS, CollectiveName
from scalebench.spec.probes import RehearsedOperation, StepRehearsal


class CommRequest(NamedTuple):
    """One operation that a step asks for.

    Attributes:
        op: Operation, as `scalebench.costmodel.links.laws` names them.
        size_bytes: Full size D, as nccl-tests counts it.
        ready_s: How far the computation has come when it asks, seconds of computation.
        needed_s: How far it comes before it needs the result; at least ``ready_s``.
        num_ranks: Ranks that take part; None: all.
        axis: Along which dimension of a mesh; None: not told.
    """

    op: str
    size_bytes: int
    ready_s: float
    needed_s: float
    num_ranks: int | None = None
    axis: str | None = None


@dataclass(frozen=True)
class Replayed:
    """A step as it would go.

    Attributes:
        step_s: From its beginning to its end, seconds.
        stalled_s: The part of it in which the computation waits for the link.
        spans_s: When each operation would run: (start, end), in the order of the requests.
    """

    step_s: float
    stalled_s: float
    spans_s: tuple[tuple[float, float], ...]


def replay(
    requests: Sequence[CommRequest], takes_s: Sequence[float], computing_s: float
) -> Replayed:
    """Replay a step.

    Args:
        requests: In the order in which the link is asked for them: by ``ready_s``.
        takes_s: What each of them takes on the free link, seconds.
        computing_s: The step's computation, all of it, seconds.

    Raises:
        ValueError: A request is needed before it is asked for, or they are not in order.
    """
    _check(requests, computing_s)
    stalled = free = 0.0
    spans: list[tuple[float, float]] = []
    waiting: list[tuple[float, float]] = []  # heap of (needed, end) of what was asked for
    for request, takes in zip(requests, takes_s, strict=True):
        stalled = _catch_up(waiting, request.ready_s, stalled)
        start = max(request.ready_s + stalled, free)
        free = start + takes
        spans.append((start, free))
        heappush(waiting, (request.needed_s, free))
    stalled = _catch_up(waiting, computing_s, stalled)
    return Replayed(computing_s + stalled, stalled, tuple(spans))


def _catch_up(waiting: list[tuple[float, float]], until_s: float, stalled: float) -> float:
    """Compute up to ``until_s``, waiting for what is needed on the way; return all stalls."""
    while waiting and waiting[0][0] <= until_s:
        needed, end = heappop(waiting)
        stalled = max(stalled, end - needed)
    return stalled


def _check(requests: Sequence[CommRequest], computing_s: float) -> None:
    reached = 0.0
    for request in requests:
        if not reached <= request.ready_s <= request.needed_s <= computing_s:
            raise ValueError(f"{request} does not fit into a step of {computing_s} s in order")
        reached = request.ready_s


@dataclass(frozen=True)
class StepShape:
    """One rank's step, were all communication free.

    Attributes:
        requests: By the moment at which they are asked for.
        batch_s: Forward and backward, seconds.
        fixed_s: The part after them, the optimizer: no batch changes it.
        num_samples: A rank's batch.
        part_step_s: Samples → the whole step on a smaller batch, seconds, where it was measured.
    """

    requests: tuple[CommRequest, ...]
    batch_s: float
    fixed_s: float
    num_samples: int
    part_step_s: Mapping[int, float] = field(default_factory=dict)

    @property
    def computing_s(self) -> float:
        """The whole step."""
        return self.batch_s + self.fixed_s

    def with_batch(self, num_samples: int) -> "StepShape":
        """Return the step on another number of samples.

        As long as it was measured; or else by the line through what was measured.
        """
        return self.lasting(self.computing_of(num_samples), num_samples)

    def lasting(self, step_s: float, num_samples: int) -> "StepShape":
        """Return the step on another number of samples, whose length is known.

        All moments of forward and backward move in proportion.
        """
        batch_s = max(step_s - self.fixed_s, 0.0)
        share = batch_s / self.batch_s if self.batch_s else 0.0  # all moments are at its start then

        def moved(moment_s: float) -> float:
            if moment_s <= self.batch_s:
                return min(share * moment_s, batch_s)
            return batch_s + moment_s - self.batch_s

        requests = tuple(
            request._replace(ready_s=moved(request.ready_s), needed_s=moved(request.needed_s))
            for request in self.requests
        )
        fixed_s = min(self.fixed_s, step_s)
        return replace(
            self, requests=requests, batch_s=batch_s, fixed_s=fixed_s, num_samples=num_samples
        )

    def slowed(self, factor: float, num_samples: int) -> "StepShape":
        """Return the step on ``num_samples`` where all of it takes ``factor`` times as long."""
        here = self.with_batch(num_samples)
        step_s = factor * here.batch_s + factor * here.fixed_s

        def moved(moment_s: float) -> float:
            return min(factor * moment_s, step_s)

        requests = tuple(
            request._replace(ready_s=moved(request.ready_s), needed_s=moved(request.needed_s))
            for request in here.requests
        )
        return replace(
            here,
            requests=requests,
            batch_s=factor * here.batch_s,
            fixed_s=factor * here.fixed_s,
            part_step_s={},
        )

    def computing_of(self, num_samples: int) -> float:
        """Return the step on so many samples, seconds.

        Where it was not measured: by the least-squares line ``t = a + b·samples``, a and b not
        negative, weighted so that relative errors count. Where no other batch was measured, in
        proportion.
        """
        known = {**self.part_step_s, self.num_samples: self.computing_s}
        if num_samples in known:
            return known[num_samples]
        if len(known) == 1:
            return self.fixed_s + self.batch_s * num_samples / self.num_samples
        x, y = np.array(list(known)), np.array(list(known.values()))
        (fixed, each), _ = nnls(np.column_stack((1 / y, x / y)), np.ones(len(x)))
        return float(fixed + each * num_samples)


@dataclass(frozen=True)
class PredictedStep:
    """A step that was not looked at.

    Attributes:
        step_s: Seconds.
        low_s: The same with every operation at the lower end of its 95 % interval.
        high_s: At the upper end.
        computing_s: Forward, backward, optimizer.
        stalled_s: Communication that nothing hides.
        requests: What is asked for.
        times: What each of them takes.
        world_sizes: Numbers of ranks at which the link was measured.
        outside: Sizes at which a line of the link was continued beyond its support, in words.
        bubble_s: The part of ``computing_s`` in which a pipeline's rank, on average, has nothing
            to do by the schedule.
        link_dof: The fewest degrees of freedom behind the interval of one of the times.
    """

    step_s: float
    low_s: float
    high_s: float
    computing_s: float
    stalled_s: float
    requests: tuple[CommRequest, ...]
    times: tuple[LinkTime, ...]
    world_sizes: tuple[int, ...]
    outside: tuple[str, ...] = ()
    bubble_s: float = 0.0
    link_dof: float = math.inf

    def longer(self, seconds: float) -> "PredictedStep":
        """Return the step where messages take more time during work than the link says, or less."""
        ends = {
            name: max(getattr(self, name) + seconds, self.computing_s)
            for name in ("step_s", "low_s", "high_s")
        }
        return replace(self, **ends)


def predict_step(
    shape: StepShape, link: LinkTimes, world_size: int, rank_batch: int
) -> PredictedStep:
    """Predict the step of one rank among ``world_size`` with ``rank_batch`` samples each.

    Raises:
        NoFit: Nothing tells what an operation takes.
    """
    here = shape.with_batch(rank_batch)
    sorts = [(r.op, r.num_ranks or world_size, r.size_bytes) for r in here.requests]
    known = {sort: link(*sort) for sort in dict.fromkeys(sorts)}
    times = [known[sort] for sort in sorts]

    def replayed(takes_s: list[float]) -> Replayed:
        return replay(here.requests, takes_s, here.computing_s)

    middle = replayed([time.time_s for time in times])
    return PredictedStep(
        step_s=middle.step_s,
        low_s=replayed([time.low_s for time in times]).step_s,
        high_s=replayed([time.high_s for time in times]).step_s,
        computing_s=here.computing_s,
        stalled_s=middle.stalled_s,
        requests=here.requests,
        times=tuple(times),
        world_sizes=tuple(sorted({n for time in times for n in time.world_sizes})),
        outside=tuple(dict.fromkeys(time.outside for time in times if time.outside)),
        link_dof=min((time.dof for time in times), default=math.inf),
    )


def with_messages(shape: StepShape, world_size: int, decode_s: float) -> StepShape:
    """Return the shape of a compressed step among ``world_size`` ranks.

    Args:
        shape: At N=1, where a rank gathers its own message only.
        world_size: N.
        decode_s: Decoding one message of each bucket, seconds of that step; the step ends so much
            later for each further message.
    """
    gathers = any(request.op == "all_gather" for request in shape.requests)
    if not gathers:
        return shape
    requests = tuple(
        request._replace(size_bytes=request.size_bytes * world_size)
        if request.op == "all_gather"
        else request
        for request in shape.requests
    )
    later_s = (world_size - 1) * decode_s
    parts = {samples: part_s + later_s for samples, part_s in shape.part_step_s.items()}
    return replace(shape, requests=requests, fixed_s=shape.fixed_s + later_s, part_step_s=parts)


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
