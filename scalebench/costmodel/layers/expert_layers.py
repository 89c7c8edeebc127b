"""What the ranks of an expert group send each other in a step.

Every layer sends the tokens to their experts and the results back, and in the backward pass the
gradients on the same ways: four all-to-alls (Lepikhin et al. 2020, §3.3). With k experts a token,
each hands in k rows for every token of the rank. That is exact where no token is dropped and, of
the way back, where a rank gets as many tokens as it sends. What really went follows from the
recorded numbers of tokens. Before them goes a small one that tells how many tokens will come.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalebench.costmodel.layers.tensor_layers import NoLaw, Operation
from scalebench.spec import Expert
from scalebench.spec.presets import MoeShape

FP32_BYTES = 4
COUNT_BYTES = 8
"""Of the number of tokens for one expert, int64."""


@dataclass(frozen=True)
class ExpertModel:
    """A model with experts: what the steps of a rank have shown.

    Attributes:
        experts: In each layer.
        rows: Of each layer: tokens of the rank's batch times the experts that each chose.
        row_bytes: Of one row on its way.
        samples: Of the rank's batch.
        replicated: Elements that every rank has.
        in_experts: Elements of all experts together.
    """

    experts: int
    rows: tuple[int, ...]
    row_bytes: int
    samples: int
    replicated: int
    in_experts: int

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "ExpertModel":
        """Return the model of a rank's facts.

        Raises:
            NoLaw: They do not tell.
        """
        load = facts.get("expert_load")
        if not load or not load["chosen"]:
            raise NoLaw("no step has shown how many tokens the experts get")
        first = load["chosen"][0]
        return cls(
            experts=len(first[0]),
            rows=tuple(sum(layer) for layer in first),
            row_bytes=load["row_bytes"],
            samples=load["samples"],
            replicated=facts["replicated_elements"],
            in_experts=facts["expert_elements"] * load["ranks"],
        )

    @classmethod
    def of_preset(cls, shape: MoeShape, samples: int) -> "ExpertModel":
        """Return the model of a preset, float32, on so many samples of a rank."""
        in_experts = shape.layers * shape.experts * shape.expert_parameters
        return cls(
            experts=shape.experts,
            rows=(shape.top_k * shape.context * samples,) * shape.layers,
            row_bytes=FP32_BYTES * shape.width,
            samples=samples,
            replicated=shape.num_parameters - in_experts,
            in_experts=in_experts,
        )


def operations_of_expert_step(
    strategy: Expert, model: ExpertModel, world_size: int, rank_batch: int
) -> list[Operation]:
    """Return what a rank takes part in during a step, in order, where tokens spread evenly.

    DDP's buckets are one operation here. With recomputation of activations the forward pass is done
    twice, and so are its operations.

    Args:
        strategy: How the experts are divided.
        model: Whose.
        world_size: N.
        rank_batch: Samples of a rank's step.
    """
    ranks = strategy.ranks_per_group(world_size)
    found = []
    if ranks > 1:
        for phase in ("forward", *(["backward"] if strategy.checkpointing else [])):
            for rows in model.rows:
                counts = COUNT_BYTES * model.experts
                found.append(Operation("all_to_all", counts, "expert", ranks, phase))
                found += [_rows(model, rows, ranks, rank_batch, phase)] * 2
        for rows in reversed(model.rows):
            found += [_rows(model, rows, ranks, rank_batch, "backward")] * 2
    if world_size > 1:
        size = FP32_BYTES * model.replicated
        found.append(Operation("all_reduce", size, "data", world_size, "backward"))
    replicas = world_size // ranks
    if replicas > 1:
        size = FP32_BYTES * model.in_experts // ranks
        found.append(Operation("all_reduce", size, "replicas", replicas, "gradients"))
    return found


def _rows(model: ExpertModel, rows: int, ranks: int, rank_batch: int, phase: str) -> Operation:
    num_bytes = round(rows * rank_batch / model.samples) * model.row_bytes
    return Operation("all_to_all", num_bytes, "expert", ranks, phase)
