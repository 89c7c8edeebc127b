"""What a case does at N=1, from which its other sizes are predicted; of a script, at its base.

A strategy's step is replayed as N=1 shows it. Of a group that divides samples or a model, the step
is that of a rank's shard, with the messages that the law says. A pipeline has its schedule.

What a user's script sends is known from its traces alone. Where it sends nothing at N=1, or less
than among several ranks (FSDP gathers nothing there), N=1 shows no moments to replay: then its base
is the smallest size that does.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Self, TypeVar

import numpy as np

from scalebench.analysis.attribution import LaunchAttribution
from scalebench.analysis.rows.compression import OF_TORCH, decoding_s, is_unmarked
from scalebench.analysis.rows.launches import Launches, Table, Unavailable
from scalebench.analysis.shapes import pipeline_shape_of, shape_among_ranks, shape_of
from scalebench.analysis.steps import launch_step_s
from scalebench.costmodel import pipeline_step
from scalebench.costmodel.context_layers import AttendingModel, RingWork, ring_requests
from scalebench.costmodel.group_steps import (
    GroupModel,
    group_operations,
    model_of_facts,
    with_sharding,
)
from scalebench.costmodel.links.fitted import LinkModel, LinkTimes, NoFit
from scalebench.costmodel.sharding import Groups, sharding_of, wraps_with
from scalebench.costmodel.step import (
    CommRequest,
    PredictedStep,
    StepShape,
    longer_than_replayed_s,
    predict_step,
    with_messages,
)
from scalebench.costmodel.tensor_layers import NoLaw
from scalebench.costmodel.what_if import AS_MEASURED, WhatIf
from scalebench.records.measured.probes import RehearsedPipeline, RehearsedStep
from scalebench.records.run import CellResult
from scalebench.spec import Cell, Compressed, Fsdp, Fsdp1, Grouped, Pipeline, Script

P = TypeVar("P", RehearsedPipeline, RehearsedStep)

NO_SHARD = (
    "what a rank of a group computes is not known from N=1, and no launch measured its shard alone"
)
ENDED_BEFORE = "the run ended before N=1 was measured; `scalebench run --resume` goes on"
ON_A_GPU = "on a GPU the shard of a rank was not tried, and N=1 does not show what it computes"


@dataclass(frozen=True, kw_only=True)
class AtOneRank:
    """What a case does at N=1.

    Attributes:
        spread: Standard error of the logarithm of the step over its launches; 0 for one.
        num_launches: How many that rests on.
        contention: How much longer a rank computes where others compute at the same time.
        shard_s: Step of a rank's shard alone, at the size in question, seconds; None: not measured.
        longer_s: What messages take longer during work than the link says, seconds; None: no ranks
            played the step.
        world_size: The size at which all this was measured.
    """

    spread: float = 0.0
    num_launches: int = 1
    contention: float = 1.0
    shard_s: float | None = None
    longer_s: float | None = None
    world_size: int = 1

    def played_over(self, link: LinkModel, cell: Cell) -> Self:
        """Return this with what ranks that played the cell's step took longer during work.

        At the nearest number of ranks at which they did; raises NoFit.
        """
        played = _nearest_played(RehearsedStep, link, cell)
        longer_s = None if played is None else longer_than_replayed_s(played, link.time)
        return replace(self, longer_s=longer_s)

    def with_shards(self, shards: Sequence[CellResult]) -> Self:
        """Return this with the launches of the shard at the size in question."""
        if not shards:
            return self
        logs = np.log([launch_step_s(result) for result in shards])
        step_s = float(np.exp(np.median(logs)))
        return replace(self, shard_s=step_s, spread=_spread(shards), num_launches=len(shards))

    def shape_of(
        self, cell: Cell, what_if: WhatIf = AS_MEASURED, shard_s: float | None = None
    ) -> StepShape:
        """Return the shape of a cell's step on a rank that has the machine to itself.

        Raises:
            NoFit: The shard was not measured, or no law says what is sent.
        """
        raise NotImplementedError

    def crowded_shape(self, cell: Cell, what_if: WhatIf, shard_s: float | None) -> StepShape:
        """Return the shape of a cell's step where others compute at the same time."""
        shape = self.shape_of(cell, what_if, shard_s)
        return shape.slowed(self.contention, cell.rank_batch)

    def predict(
        self,
        cell: Cell,
        link: LinkTimes,
        what_if: WhatIf = AS_MEASURED,
        shard_s: float | None = None,
    ) -> PredictedStep:
        """Predict a cell.

        ``shard_s``: the computation of a rank's shard, where it was measured, seconds.

        Raises:
            NoFit: Nothing tells what an operation takes.
        """
        shape = self.crowded_shape(cell, what_if, shard_s)
        predicted = predict_step(shape, link, cell.world_size, cell.rank_batch)
        return predicted.longer(self.longer_s or 0.0)

    def computing_s(self, cell: Cell, predicted: PredictedStep) -> float:
        """Return what `textbook_s` has for the computation, seconds."""
        return self.shard_s or predicted.computing_s

    def textbook_s(self, cell: Cell, predicted: PredictedStep, link: LinkModel) -> float:
        """Return the simplest prediction there is, for comparison, seconds.

        The computation, and the bandwidth terms of all operations on top; nothing overlaps.
        """
        terms = [
            link.bandwidth_term(r.op, r.num_ranks or cell.world_size, r.size_bytes)
            for r in predicted.requests
        ]
        return self.computing_s(cell, predicted) + sum(terms)


@dataclass(frozen=True, kw_only=True)
class StepAtOneRank(AtOneRank):
    """A strategy at N=1.

    Of a script that sends nothing at N=1: at the smallest N that was measured, with its exposed
    communication taken out. Where no shard was measured, the line through what N=1 measured stands
    for it.

    Attributes:
        groups: Parameters that a sharded strategy gathers together; None: it is not sharded.
        decode_s: Decoding one rank's messages, seconds per step; None: nothing is compressed.
    """

    shape: StepShape
    groups: Groups | None = None
    decode_s: float | None = None

    def at(self, cell: Cell, world_size: int) -> StepShape:
        """Return the shape at a number of ranks; a sharded strategy sends nothing at N=1."""
        if self.decode_s is not None:
            return with_messages(self.shape, world_size, self.decode_s)
        if self.groups is None:
            return self.shape
        return with_sharding(self.shape, sharding_of(cell.strategy, world_size), self.groups)

    def shape_of(
        self, cell: Cell, what_if: WhatIf = AS_MEASURED, shard_s: float | None = None
    ) -> StepShape:
        """See `AtOneRank`."""
        shape = what_if.shape(self.at(cell, cell.world_size))
        alone_s = shard_s if shard_s is not None else self.shard_s
        if alone_s is not None:
            return shape.lasting(alone_s, cell.rank_batch)
        return shape.with_batch(cell.rank_batch)

    def computing_s(self, cell: Cell, predicted: PredictedStep) -> float:
        """Return the step at N=1 in proportion to the batch, seconds."""
        return cell.rank_batch / self.shape.num_samples * self.shape.computing_s


@dataclass(frozen=True, kw_only=True)
class PipelineAtOneRank(AtOneRank):
    """A pipeline at N=1."""

    pipeline: pipeline_step.PipelineShape

    def played_over(self, link: LinkModel, cell: Cell) -> Self:
        """See `AtOneRank`."""
        played = _nearest_played(RehearsedPipeline, link, cell)
        longer_s = (
            None if played is None else pipeline_step.longer_than_modelled_s(played, link.time)
        )
        return replace(self, pipeline=replace(self.pipeline, longer_s=longer_s), longer_s=longer_s)

    def with_shards(self, shards: Sequence[CellResult]) -> Self:
        """Return this: no stage is measured alone."""
        return self

    def predict(
        self,
        cell: Cell,
        link: LinkTimes,
        what_if: WhatIf = AS_MEASURED,
        shard_s: float | None = None,
    ) -> PredictedStep:
        """Predict a cell; raises NoFit.

        Ranks that played the pipeline computed at once, so there is no contention on top.
        """
        factor = 1.0 if self.longer_s is not None else self.contention
        shape = what_if.pipeline(self.pipeline.with_batch(cell.rank_batch).slowed(factor))
        return pipeline_step.predict_pipeline(shape, link, cell.world_size)

    def textbook_s(self, cell: Cell, *_: object) -> float:
        """Return the step by the law of the bubble alone, seconds."""
        return pipeline_step.textbook_pipeline_s(
            self.pipeline.with_batch(cell.rank_batch), cell.world_size
        )


@dataclass(frozen=True, kw_only=True)
class GroupAtOneRank(AtOneRank):
    """A model at N=1, from whose layers follows what the ranks of any size send.

    What a rank of N computes was measured alone, on torch's fake process group, at that very N.

    Attributes:
        work: Of a ring of the size in question, behind which its messages hide; None: there is
            none.
    """

    model: GroupModel
    work: RingWork | None = None

    def with_shards(self, shards: Sequence[CellResult]) -> Self:
        """See `AtOneRank`."""
        return replace(super().with_shards(shards), work=ring_work_of(shards) or self.work)

    def shape_of(
        self, cell: Cell, what_if: WhatIf = AS_MEASURED, shard_s: float | None = None
    ) -> StepShape:
        """See `AtOneRank`."""
        return replace(self, contention=1.0).crowded_shape(cell, what_if, shard_s)

    def crowded_shape(self, cell: Cell, what_if: WhatIf, shard_s: float | None) -> StepShape:
        """See `AtOneRank`."""
        seconds = shard_s if shard_s is not None else self.shard_s
        if seconds is None:
            raise NoFit(NO_SHARD)
        return what_if.shape(self._shape(cell, self.contention * seconds))

    def _shape(self, cell: Cell, step_s: float) -> StepShape:
        """Return the step; but in a ring the ranks wait for every operation as they ask for it.

        Layers are alike, so what they send is spread over it evenly; gradients are summed after it.
        """
        assert isinstance(cell.strategy, Grouped)
        try:
            operations = group_operations(
                cell.strategy, self.model, cell.world_size, cell.rank_batch
            )
        except NoLaw as reason:
            raise NoFit(str(reason)) from reason
        in_ring = self._in_ring(cell, step_s)
        others = [op for op in operations if not (in_ring and op.op == "send_recv_ring")]
        in_layers = [op.phase in ("forward", "backward") for op in others]
        places = count()
        requests = [
            CommRequest(op.op, op.num_bytes, at, at, op.num_ranks, op.axis)
            for op, in_layer in zip(others, in_layers, strict=True)
            for at in [step_s * (next(places) + 0.5) / sum(in_layers) if in_layer else step_s]
        ]
        ordered = sorted((*in_ring, *requests), key=lambda request: request.ready_s)
        return StepShape(tuple(ordered), step_s, 0.0, cell.rank_batch)

    def _in_ring(self, cell: Cell, step_s: float) -> list[CommRequest]:
        """Return a ring's messages with what hides them; empty: there is no ring, or no turns."""
        if self.work is None or not isinstance(self.model, AttendingModel):
            return []
        assert isinstance(cell.strategy, Grouped)
        ranks, turns = cell.strategy.ranks_per_group(cell.world_size), self.work
        slowed = turns.slowed(self.contention)
        return ring_requests(self.model, ranks, cell.rank_batch, slowed, step_s)


def ring_work_of(shards: Sequence[CellResult]) -> RingWork | None:
    """Return what a ring's turns took on its shard, medians over the launches; None: no ring."""
    told = [shard.ranks[0].facts.get("context", {}).get("turns_s") for shard in shards]
    found = [(one["forward"], one["backward"]) for one in told if one]
    if not found:
        return None
    forward_s, backward_s = np.median(np.array(found), axis=0)
    return RingWork(float(forward_s), float(backward_s))


def step_at_one_rank(at_one: Launches | None) -> AtOneRank:
    """Return what a strategy does at N=1, or a script at its base; raises Unavailable."""
    if at_one is None or not at_one.good:
        is_left = at_one is not None and len(at_one.measured) < at_one.num_planned
        raise Unavailable(ENDED_BEFORE if is_left else "no launch of the strategy at N=1 succeeded")
    if at_one.cell.world_size > 1:  # of a script
        launches = list(at_one.attributed.values())
        shape = shape_among_ranks(launches)
        return StepAtOneRank(shape=shape, world_size=at_one.cell.world_size, **_rests_on(launches))
    first = next(iter(at_one.good.values()))
    strategy = first.cell.strategy
    is_sharded = isinstance(strategy, Fsdp | Fsdp1) or wraps_with(strategy, "fsdp2")
    if is_sharded and first.cell.device == "cuda":
        raise Unavailable("on a GPU, gathers run ahead of the computation; N=1 does not show when")
    if isinstance(strategy, Compressed) and is_unmarked(strategy):
        raise Unavailable(OF_TORCH)
    if isinstance(strategy, Grouped):
        if first.cell.device == "cuda":
            raise Unavailable(ON_A_GPU)
        try:
            return GroupAtOneRank(model=model_of_facts(strategy, first.ranks[0].facts))
        except NoLaw as reason:
            raise Unavailable(str(reason)) from reason
    launches = list(at_one.attributed.values())
    rests_on = _rests_on(launches)
    if isinstance(strategy, Pipeline):
        return PipelineAtOneRank(pipeline=pipeline_shape_of(strategy, launches), **rests_on)
    silent = is_sharded or (isinstance(strategy, Compressed) and strategy.method == "noop")
    shape = shape_of(launches, may_be_silent=silent)
    groups = _groups(first) if is_sharded else None
    decode_s = decoding_s(launches) if isinstance(strategy, Compressed) else None
    return StepAtOneRank(shape=shape, groups=groups, decode_s=decode_s, **rests_on)


def _rests_on(launches: Sequence[LaunchAttribution]) -> dict[str, Any]:
    results = [launch.result for launch in launches]
    return {"spread": _spread(results), "num_launches": len(results)}


def _spread(launches: Sequence[CellResult]) -> float:
    """Return the standard error of the logarithm of the step over launches; 0 for one."""
    logs = np.log([launch_step_s(result) for result in launches])
    return float(logs.std(ddof=1)) / len(logs) ** 0.5 if len(logs) > 1 else 0.0


def _groups(result: CellResult) -> Groups:
    rank = result.ranks[0]
    return Groups.of(rank.facts.get("group_elements"), rank.num_parameters or 0)


def _nearest_played(kind: type[P], link: LinkModel, cell: Cell) -> P | None:
    """Return what was played of a cell's case at the nearest number of ranks; None: nothing was."""
    own = [
        each
        for each in link.rehearsals
        if isinstance(each, kind) and (each.suite, each.case) == (cell.suite, cell.case)
    ]
    return min(
        own, key=lambda each: abs(math.log2(each.world_size / cell.world_size)), default=None
    )


def prediction_base(row: Launches, table: Table) -> Launches | None:
    """Return the launches that a row's case is predicted from; None: there are none at N=1.

    None as well where a rank's work at this N is not known.

    Of a script the smallest N ≥ 2 whose steps were traced, if ranks send there what one rank does
    not; of anything else N=1.
    """
    if row.no_ratio:
        return None
    suite, case, _ = row.cell.row_key
    at_one = table.get((suite, case, 1))
    if not isinstance(row.cell.strategy, Script):
        return at_one
    several = [
        launches
        for (of_suite, of_case, world_size), launches in table.items()
        if (of_suite, of_case) == (suite, case) and world_size > 1 and launches.attributed
    ]
    smallest = min(several, key=lambda launches: launches.cell.world_size, default=None)
    if smallest is None or _sent(smallest) <= _sent(at_one):
        return at_one
    return smallest


def _sent(launches: Launches | None) -> set[str]:
    """Return the kinds of operations that carry something in the traced steps of rank 0."""
    if launches is None:
        return set()
    return {
        op.kind
        for launch in launches.attributed.values()
        for op in launch.traces[0].operations
        if op.num_bytes
    }
