"""Predict a step: the shape of a computation, the fitted link, and who waits for what.

A step with compressed gradients, from the one at N=1.

What is all-gathered grows with the number of ranks, and so does decoding it: every rank decodes
the messages of all. What is all-reduced stays as it is. Encoding does not depend on N.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import nnls

from scalebench.costmodel.layers.replay import CommRequest, Replayed, replay
from scalebench.costmodel.links.times import LinkTime, LinkTimes


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
