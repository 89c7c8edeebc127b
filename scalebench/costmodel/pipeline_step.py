"""A pipeline's step: its schedule dry-run with the times and transfers that N would have.

A schedule with times: when each action begins and ends, and how long ranks have nothing to do.

A rank does its actions in order, each as soon as what it needs from other stages has come. Sends
do not hold their rank up, but the link from one rank to another carries one message at a time.
Source of the model: docs/definitions.md, "Pipelines".

From the pipeline at N=1, where one rank runs all stages: forward and backward of the whole model on
a microbatch are measured there. At N the layers are split again; a stage takes the part of the
whole that its layers have in the counted cost. A rank sends a stage's output to the next, and its
gradient back; a send and its receive take what the link was calibrated to take. What a rank does
between passes is measured at N=1 too and stays; the optimizer's part shrinks with the stage.
Where ranks have played the schedule, what it took them longer than all this says is added.

Source: the schedules' own papers (`scalebench.costmodel.pipeline_schedule`); the bubble that comes
of it is that of `scalebench.costmodel.pipeline_step`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from scalebench.costmodel.links.fitted import LinkTimes, NoFit
from scalebench.costmodel.pipeline_schedule import (
    FROM_TORCH,
    Action,
    Schedule,
    needs,
    plan_schedule,
)
from scalebench.costmodel.stage_split import Layers, layers_of_stages
from scalebench.costmodel.step import CommRequest, PredictedStep
from scalebench.records.measured.probes import RehearsedPipeline
from scalebench.spec import Pipeline
from scalebench.spec.probes import PipelineRehearsal, RehearsedStage

Seconds = Mapping[tuple[str, int], float]
"""Kind and stage → what one such action takes, seconds."""
HOP = "send_recv"


class Deadlock(ValueError):
    """The ranks wait for one another for ever; the text says who for what."""


@dataclass(frozen=True)
class Timeline:
    """What a dry run yields; seconds after the step began, in the order of the rank's actions.

    Attributes:
        overhead_s: Of each action, before it begins: the rank is busy then, too.
    """

    schedule: Schedule
    start_s: tuple[tuple[float, ...], ...]
    end_s: tuple[tuple[float, ...], ...]
    overhead_s: float = 0.0

    @cached_property
    def step_s(self) -> float:
        """When the last action ends."""
        return max(ends[-1] for ends in self.end_s if ends)

    def busy_s(self, rank: int) -> float:
        """Return how long a rank works."""
        pairs = zip(self.start_s[rank], self.end_s[rank], strict=True)
        return sum(end - start + self.overhead_s for start, end in pairs)

    def idle_s(self, rank: int) -> float:
        """Return how long a rank has nothing to do."""
        return max(self.step_s - self.busy_s(rank), 0.0)

    @property
    def bubble_ratio(self) -> float:
        """The idle part of all ranks' time together; dimensionless."""
        ranks = range(self.schedule.num_ranks)
        return sum(map(self.idle_s, ranks)) / (self.schedule.num_ranks * self.step_s)


def equal_times(num_stages: int, forward_s: float = 1.0, backward_s: float = 2.0) -> Seconds:
    """Return the times of stages that all take equally long; I and W share a backward pass."""
    of_kind = {"F": forward_s, "B": backward_s, "I": backward_s / 2, "W": backward_s / 2}
    return {(kind, stage): s for kind, s in of_kind.items() for stage in range(num_stages)}


def dry_run(
    schedule: Schedule, seconds: Seconds, transfer_s: float = 0.0, overhead_s: float = 0.0
) -> Timeline:
    """Work out when every action begins and ends.

    Args:
        schedule: What the ranks do.
        seconds: How long it takes them.
        transfer_s: From the end of an action until its result is on another rank, seconds; later
            if the link still carries an earlier one.
        overhead_s: What an action costs its rank before it begins, seconds.

    Raises:
        Deadlock: The ranks wait for one another for ever.
    """
    home, num_stages = schedule.rank_of_stage, schedule.num_stages
    ready: dict[Action, float] = {}  # when a result is where it is needed; I counts as B
    link_free: dict[tuple[int, int], float] = {}  # from rank, to rank → when it can carry a message
    waiting: dict[Action, int] = {}  # what a rank waits for → the rank
    reached = [0.0] * schedule.num_ranks
    starts: list[list[float]] = [[] for _ in schedule.ranks]
    ends: list[list[float]] = [[] for _ in schedule.ranks]
    can_go_on = list(range(schedule.num_ranks))
    while can_go_on:
        rank = can_go_on.pop()
        actions = schedule.ranks[rank]
        for place in range(len(ends[rank]), len(actions)):
            action = actions[place]
            source = needs(action, num_stages)
            begin = reached[rank]
            if source is not None:
                if source not in ready:
                    waiting[source] = rank
                    break
                begin = max(begin, ready[source])
            begin += overhead_s
            reached[rank] = begin + seconds[action.kind, action.stage]
            starts[rank].append(begin)
            ends[rank].append(reached[rank])
            if action.kind != "W":
                made = action._replace(kind="B") if action.kind == "I" else action
                ready[made] = reached[rank]
                target = home.get(made.stage + (1 if made.kind == "F" else -1), rank)
                if target != rank:
                    sent = max(reached[rank], link_free.get((rank, target), 0.0))
                    ready[made] = link_free[rank, target] = sent + transfer_s
                if made in waiting:
                    can_go_on.append(waiting.pop(made))
    if waiting:
        raise Deadlock(_who_waits(schedule, ends, waiting))
    return Timeline(schedule, tuple(map(tuple, starts)), tuple(map(tuple, ends)), overhead_s)


def _who_waits(
    schedule: Schedule, ends: Sequence[Sequence[float]], waiting: Mapping[Action, int]
) -> str:
    told = sorted(
        f"rank {rank} waits with {schedule.ranks[rank][len(ends[rank])]} for {source}"
        for source, rank in waiting.items()
    )
    return f"{schedule.name} deadlocks: " + ", ".join(told)


@dataclass(frozen=True)
class PipelineShape:
    """A pipeline's step at N=1, seconds.

    Attributes:
        strategy: What was run.
        layers: Of the model.
        passes_s: Kind of action (``F``, ``B``, or ``I`` and ``W``) → all stages together, for one
            microbatch.
        between_s: What an action costs its rank before it begins.
        after_s: From the last action to the end of the step: mostly the optimizer.
        num_samples: Of the pipeline's batch; a pass takes as long as its samples, in proportion.
        longer_s: What ranks that played the pipeline without its model took longer for a step than
            schedule and links say; None: none did.
    """

    strategy: Pipeline
    layers: Layers
    passes_s: Mapping[str, float]
    between_s: float
    after_s: float
    num_samples: int
    longer_s: float | None = None

    @property
    def computing_s(self) -> float:
        """The whole step at N=1."""
        m, v = self.strategy.microbatches, self.strategy.chunks
        actions = m * v * len(self.passes_s)
        return m * sum(self.passes_s.values()) + actions * self.between_s + self.after_s

    def with_batch(self, num_samples: int) -> "PipelineShape":
        """Return the step on a batch of another size, in as many microbatches."""
        return self._resized(num_samples / self.num_samples, num_samples=num_samples)

    def with_microbatches(self, microbatches: int) -> "PipelineShape":
        """Return the step with the same batch cut into other microbatches."""
        strategy = self.strategy.model_copy(update={"microbatches": microbatches})
        longer_s = self.longer_s
        if longer_s is not None:  # every microbatch costs it again
            longer_s *= microbatches / self.strategy.microbatches
        fewer = self.strategy.microbatches / microbatches
        return self._resized(fewer, strategy=strategy, longer_s=longer_s)

    def slowed(self, factor: float) -> "PipelineShape":
        """Return the step where all of its computation takes ``factor`` times as long."""
        return replace(
            self,
            passes_s={kind: factor * seconds for kind, seconds in self.passes_s.items()},
            between_s=factor * self.between_s,
            after_s=factor * self.after_s,
        )

    def _resized(self, factor: float, **changes: Any) -> "PipelineShape":
        """Return the step with microbatches of ``factor`` times as many samples."""
        outputs = tuple(max(1, round(factor * size)) for size in self.layers.output_bytes)
        return replace(
            self,
            passes_s={kind: factor * seconds for kind, seconds in self.passes_s.items()},
            layers=replace(self.layers, output_bytes=outputs),
            **changes,
        )


def predict_pipeline(shape: PipelineShape, link: LinkTimes, world_size: int) -> PredictedStep:
    """Predict the step of a pipeline over ``world_size`` ranks, or of several side by side.

    Raises:
        NoFit: Only torch knows the order of the schedule, it cannot be cut or ordered so, or
            nothing tells what a transfer takes.
    """
    strategy, layers = shape.strategy, shape.layers
    ranks = world_size // strategy.pipelines(world_size)
    schedule = _schedule(strategy, ranks)
    stages = stages_of(shape, world_size)
    shares = _shares(layers, stages)
    seconds = {
        (kind, stage): whole_s * share
        for kind, whole_s in shape.passes_s.items()
        for stage, share in enumerate(shares)
    }
    home = schedule.rank_of_stage
    of_rank = [sum(shares[s] for s, at in home.items() if at == rank) for rank in range(ranks)]
    after_s = shape.after_s * max(of_rank)

    def passes(hop_s: float) -> Timeline:
        return dry_run(schedule, seconds, transfer_s=hop_s, overhead_s=shape.between_s)

    longer_s = shape.longer_s or 0.0

    def step_s(hop_s: float, sums_s: float) -> float:
        return passes(hop_s).step_s + after_s + sums_s + longer_s

    largest = max(layers.output_bytes[end - 1] for _, end in stages[:-1])
    requests = [CommRequest(HOP, largest, 0.0, 0.0)]
    requests += _tied_sums(layers, stages, home)
    times = [link(r.op, r.num_ranks or world_size, r.size_bytes) for r in requests]
    hop, *sums = times
    middle_s = step_s(hop.time_s, sum(t.time_s for t in sums))
    bare = passes(0.0)
    bare_s = bare.step_s + after_s
    return PredictedStep(
        step_s=middle_s,
        low_s=step_s(hop.low_s, sum(t.low_s for t in sums)),
        high_s=step_s(hop.high_s, sum(t.high_s for t in sums)),
        computing_s=bare_s,
        stalled_s=middle_s - bare_s,
        requests=tuple(requests),
        times=tuple(times),
        world_sizes=tuple(sorted({n for time in times for n in time.world_sizes})),
        outside=tuple(dict.fromkeys(time.outside for time in times if time.outside)),
        bubble_s=sum(map(bare.idle_s, range(ranks))) / ranks,
        link_dof=min(time.dof for time in times),
    )


def stages_of(shape: PipelineShape, world_size: int) -> list[tuple[int, int]]:
    """Return the layers of each stage, from the first to before the last; raises NoFit."""
    strategy = shape.strategy
    ranks = world_size // strategy.pipelines(world_size)
    try:
        return layers_of_stages(strategy.split, shape.layers.costs, ranks * strategy.chunks)
    except ValueError as reason:
        raise NoFit(str(reason)) from reason


def _shares(layers: Layers, stages: Sequence[tuple[int, int]]) -> list[float]:
    return [sum(layers.costs[begin:end]) / sum(layers.costs) for begin, end in stages]


def rehearsal_of(shape: PipelineShape, world_size: int) -> PipelineRehearsal:
    """Return what ranks have to play for a pipeline; raises NoFit."""
    layers, stages = shape.layers, stages_of(shape, world_size)
    last = len(stages) - 1
    return PipelineRehearsal(
        schedule=shape.strategy.schedule,
        microbatches=shape.strategy.microbatches,
        stages=tuple(
            RehearsedStage(
                forward_s=shape.passes_s["F"] * share,
                backward_s=shape.passes_s["B"] * share,
                output_bytes=layers.output_bytes[end - 1] if stage < last else 1,
            )
            for stage, (share, (_, end)) in enumerate(
                zip(_shares(layers, stages), stages, strict=True)
            )
        ),
    )


def longer_than_modelled_s(played: RehearsedPipeline, link: LinkTimes) -> float:
    """Return what a played step took longer than its dry run over the link says, seconds.

    Raises:
        NoFit: Nothing tells what a transfer takes.
    """
    plan, ranks = played.plan, played.world_size
    schedule = plan_schedule(plan.schedule, ranks, plan.microbatches, len(plan.stages) // ranks)
    seconds = {("F", i): stage.forward_s for i, stage in enumerate(plan.stages)}
    seconds |= {("B", i): stage.backward_s for i, stage in enumerate(plan.stages)}
    hop_s = link(HOP, ranks, max(stage.output_bytes for stage in plan.stages[:-1])).time_s
    modelled_s = dry_run(schedule, seconds, hop_s, played.action_s).step_s
    return float(np.median(played.step_s)) - modelled_s


def textbook_pipeline_s(shape: PipelineShape, world_size: int) -> float:
    """Return the step by the law of the bubble alone: equal stages, nothing to transfer."""
    strategy = shape.strategy
    ranks = world_size // strategy.pipelines(world_size)
    slots = strategy.chunks * strategy.microbatches
    return shape.computing_s / ranks * (slots + ranks - 1) / slots


def _schedule(strategy: Pipeline, ranks: int) -> Schedule:
    if strategy.schedule in FROM_TORCH:
        raise NoFit(f"only torch knows the order of {strategy.schedule}")
    try:
        return plan_schedule(strategy.schedule, ranks, strategy.microbatches, strategy.chunks)
    except ValueError as reason:
        raise NoFit(str(reason)) from reason


def _tied_sums(
    layers: Layers, stages: Sequence[tuple[int, int]], home: Mapping[int, int]
) -> list[CommRequest]:
    """Return the all-reduces of parameters that several ranks hold."""
    of_layer = {
        layer: home[stage]
        for stage, (begin, end) in enumerate(stages)
        for layer in range(begin, end)
    }
    found = []
    for parameter in layers.tied:
        holders = {of_layer[layer] for layer in parameter.layers}
        if len(holders) > 1:
            found.append(CommRequest("all_reduce", parameter.num_bytes, 0.0, 0.0, len(holders)))
    return found
