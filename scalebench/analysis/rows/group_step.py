"""The step of a group that divides samples or a model: a rank's shard and the law of messages."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple

import numpy as np

from scalebench.analysis.rows.fields import Unavailable
from scalebench.analysis.rows.played import longer_beside_work_s
from scalebench.analysis.steps import launch_step_s
from scalebench.costmodel.context_layers import AttendingModel
from scalebench.costmodel.group_steps import GroupModel, group_operations, model_of_facts
from scalebench.costmodel.links.times import LinkModel, LinkTimes, NoFit
from scalebench.costmodel.replay import CommRequest
from scalebench.costmodel.ring_overlap import Turns, ring_requests
from scalebench.costmodel.step import PredictedStep, StepShape, predict_step
from scalebench.costmodel.tensor_layers import NoLaw
from scalebench.costmodel.what_if import AS_MEASURED, WhatIf
from scalebench.records.run import CellResult
from scalebench.spec import Cell, Grouped

NO_SHARD = (
    "what a rank of a group computes is not known from N=1, and no launch measured its shard alone"
)
ON_A_GPU = "on a GPU the shard of a rank was not tried, and N=1 does not show what it computes"


class StepAlone(NamedTuple):
    """A shard's step by itself, seconds, and the standard error of its logarithm; 0 for one."""

    step_s: float
    spread: float


def step_alone(shards: Sequence[CellResult]) -> StepAlone | None:
    """Return the step of one rank's shard over its launches; None: there are none."""
    logs = np.log([launch_step_s(result) for result in shards])
    if len(logs) == 0:
        return None
    spread = float(logs.std(ddof=1)) / len(logs) ** 0.5 if len(logs) > 1 else 0.0
    return StepAlone(float(np.exp(np.median(logs))), spread)


@dataclass(frozen=True)
class GroupAtOneRank:
    """A model at N=1, from whose layers follows what the ranks of any size send.

    What a rank of N computes was measured alone, on torch's fake process group, at that very N.

    Attributes:
        model: What is divided.
        shard_s: Step of a rank's shard at the size in question, seconds; None: not measured.
        spread: Standard error over its launches of the logarithm of that step; 0 for one.
        num_launches: How many that rests on.
        contention: How much longer a rank computes where others compute at the same time.
        turns: Of a ring of the size in question, behind which its messages hide; None: there is
            none.
        longer_s: What messages take longer beside work than the link says, seconds; None: no ranks
            played the step.
    """

    model: GroupModel
    shard_s: float | None = None
    spread: float = 0.0
    num_launches: int = 1
    contention: float = 1.0
    turns: Turns | None = None
    longer_s: float | None = None

    def played_over(self, link: LinkModel, cell: Cell) -> "GroupAtOneRank":
        """Return this with what messages took beside work where ranks played the cell's step."""
        return replace(self, longer_s=longer_beside_work_s(link, cell))

    def with_shards(self, shards: Sequence[CellResult]) -> "GroupAtOneRank":
        """Return this with the launches of the shard at the size in question."""
        alone = step_alone(shards)
        if alone is None:
            return self
        return replace(
            self,
            shard_s=alone.step_s,
            spread=alone.spread,
            num_launches=len(shards),
            turns=turns_of(shards),
        )

    def predict(
        self,
        cell: Cell,
        link: LinkTimes,
        what_if: WhatIf = AS_MEASURED,
        shard_s: float | None = None,
    ) -> PredictedStep:
        """Predict a cell; see `StepAtOneRank.predict`. Raises NoFit."""
        seconds = shard_s if shard_s is not None else self.shard_s
        if seconds is None:
            raise NoFit(NO_SHARD)
        shape = what_if.shape(self._shape(cell, self.contention * seconds))
        predicted = predict_step(shape, link, cell.world_size, cell.rank_batch)
        return predicted.longer(self.longer_s or 0.0)

    def shape_of(self, cell: Cell) -> StepShape:
        """Return the shape of a cell's step on a rank that has the machine to itself.

        Raises:
            NoFit: The shard was not measured, or no law says what is sent.
        """
        if self.shard_s is None:
            raise NoFit(NO_SHARD)
        return replace(self, contention=1.0)._shape(cell, self.shard_s)

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
        if self.turns is None or not isinstance(self.model, AttendingModel):
            return []
        assert isinstance(cell.strategy, Grouped)
        ranks, turns = cell.strategy.ranks_per_group(cell.world_size), self.turns
        slowed = turns.slowed(self.contention)
        return ring_requests(self.model, ranks, cell.rank_batch, slowed, step_s)

    def textbook_s(self, cell: Cell, predicted: PredictedStep, link: LinkModel) -> float:
        """Return the shard's step with the bandwidth terms of all operations on top, seconds."""
        terms = [
            link.bandwidth_term(r.op, r.num_ranks or cell.world_size, r.size_bytes)
            for r in predicted.requests
        ]
        return (self.shard_s or predicted.computing_s) + sum(terms)


def turns_of(shards: Sequence[CellResult]) -> Turns | None:
    """Return what a ring's turns took on its shard, medians over the launches; None: no ring."""
    told = [shard.ranks[0].facts.get("context", {}).get("turns_s") for shard in shards]
    found = [(one["forward"], one["backward"]) for one in told if one]
    if not found:
        return None
    forward_s, backward_s = np.median(np.array(found), axis=0)
    return Turns(float(forward_s), float(backward_s))


def group_at_one_rank(result: CellResult) -> GroupAtOneRank:
    """Return what a launch at N=1 shows of what is divided; raises Unavailable."""
    if result.cell.device == "cuda":
        raise Unavailable(ON_A_GPU)
    try:
        assert isinstance(result.cell.strategy, Grouped)
        return GroupAtOneRank(model_of_facts(result.cell.strategy, result.ranks[0].facts))
    except NoLaw as reason:
        raise Unavailable(str(reason)) from reason
