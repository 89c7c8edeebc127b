"""What the ranks of a group send that divides samples or a model: by the law of their strategy.

Each division of a mesh sends what it sends by itself, of what the others leave to a rank. Along
``tensor`` and ``context`` that is what their own laws say (`tensor_layers`, `context_layers`), of
the layers of its stage and its tokens. Along ``shard`` FSDP2 gathers a block's parameters for
forward and again for backward, the rest once, and reduce-scatters all gradients: 3(S−1)/S of what a
rank of the tensor group keeps (Rajbhandari et al. 2020; Zhao et al. 2023); in a pipeline it gathers
once a step, 2(S−1)/S. Replicas all-reduce what is left to a rank, 2(D−1)/D. A stage sends its
output to the next and its input's gradient to the one before, for each microbatch (Narayanan et al.
2021, §3.2).

At N=1 a sharded strategy sends nothing, so its traces show no moments to replay. On CPU none are
needed: FSDP waits for every gather before it computes and for every reduction before it goes on,
and nothing is hidden. On a GPU gathers run ahead of the computation; when, is not known from N=1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from scalebench.costmodel.context_layers import (
    AttendingModel,
    ExpertModel,
    operations_of_attention,
    operations_of_context_step,
    operations_of_expert_step,
)
from scalebench.costmodel.sharding import Groups, Sharding
from scalebench.costmodel.step import CommRequest, StepShape
from scalebench.costmodel.tensor_layers import (
    FP32_BYTES,
    DividedModel,
    NoLaw,
    Operation,
    Shape,
    model_of_preset,
    operations_along_tensor,
    operations_of_step,
    why_no_law,
)
from scalebench.spec import Context, Expert, Grouped, Mesh, Tensor, expert_groups
from scalebench.spec.presets import GptShape, MlpShape, MoeShape, WorkloadSpec


def with_sharding(shape: StepShape, sharding: Sharding, groups: Groups) -> StepShape:
    """Return the step with the operations of a sharded strategy in it, each waited for.

    Every group of parameters is gathered in forward, the inner ones again in backward where they
    are resharded; its gradients are reduce-scattered, and all-reduced over the replicas. Source:
    Zhao et al. 2023 (PyTorch FSDP).

    Args:
        shape: Of the strategy at N=1, for the batch in question.
        sharding: How the strategy divides at N.
        groups: Parameters that are gathered together.
    """
    once = sharding.param_bytes
    sizes = [*groups.inner, *([groups.root] if groups.root else [])]
    forward = [("all_gather", once * n, sharding.shards) for n in sizes]
    again = [("all_gather", once * n, sharding.shards) for n in groups.inner if sharding.reshards]
    scattered = [("reduce_scatter", sharding.reduce_bytes * n, sharding.shards) for n in sizes]
    shard_bytes = [sharding.reduce_bytes * n // sharding.shards for n in sizes]
    reduced = [("all_reduce", n, sharding.replicas) for n in shard_bytes if sharding.replicas > 1]
    requests = [
        *_waited_for(forward, 0.0),
        *_waited_for([*again, *scattered, *reduced], shape.batch_s),
    ]
    return replace(shape, requests=tuple(requests))


def _waited_for(operations: Sequence[tuple[str, int, int]], moment_s: float) -> list[CommRequest]:
    return [
        CommRequest(op, size, moment_s, moment_s, num_ranks)
        for op, size, num_ranks in operations
        if num_ranks > 1
    ]


PHASES = ("forward", "backward", "gradients")


@dataclass(frozen=True)
class StageModel:
    """What a rank's stages exchange with others.

    Attributes:
        sent_forward_bytes: Of a microbatch, for each stage that hands its output on.
        sent_backward_bytes: Of a microbatch, for each stage that hands a gradient back.
        tied_bytes: Gradients that stages of several ranks share, each.
        tied_ranks: Of how many ranks.
    """

    sent_forward_bytes: tuple[int, ...]
    sent_backward_bytes: tuple[int, ...]
    tied_bytes: tuple[int, ...]
    tied_ranks: int

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "StageModel":
        """Return what a rank's facts tell."""
        return cls(
            tuple(facts["sent_forward_bytes"]),
            tuple(facts["sent_backward_bytes"]),
            tuple(facts["tied_bytes"]),
            facts["tied_ranks"],
        )


@dataclass(frozen=True)
class MeshModel:
    """A model as a mesh divides it: what a step of a rank has shown.

    Attributes:
        layers: As tensor groups divide them.
        attention: As ranks with other tokens divide it, all heads; None: tokens are not divided.
        stages: None: the rank has all layers.
    """

    layers: DividedModel
    attention: AttendingModel | None = None
    stages: StageModel | None = None

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "MeshModel":
        """Return the model of a rank's facts.

        Raises:
            NoLaw: They do not tell.
        """
        stages = StageModel.of(facts) if "tied_ranks" in facts else None
        attention = AttendingModel.of(facts) if "context" in facts else None
        return cls(DividedModel.of(facts), attention, stages)


def operations_of_mesh_step(
    strategy: Mesh, model: MeshModel, world_size: int, rank_batch: int
) -> list[Operation]:
    """Return what a rank takes part in during a step, float32, in order.

    Args:
        strategy: Which dimensions there are.
        model: What is divided, as this rank has seen it.
        world_size: N.
        rank_batch: Samples of a step of the ranks that share them.

    Raises:
        NoLaw: There is no formula; the text says why.
    """
    sizes = strategy.axis_sizes(world_size)
    reason = why_no_law(strategy)
    if reason is None and sizes["pipeline"] > 1 and model.stages is None:
        reason = "the step of a mesh with a pipeline does not follow from N=1, which has no stages"
    if reason is not None:
        raise NoLaw(reason)
    ranks, context, shards = sizes["tensor"], sizes["context"], sizes["shard"]
    found, partial = operations_along_tensor(strategy, model.layers, ranks, rank_batch)
    if model.attention is not None and context > 1:
        alone = strategy.as_context()
        found += operations_of_attention(alone, model.attention, context, rank_batch, ranks)
    if shards > 1:  # fully_shard completes one gradient after the other
        found += [_along_tensor(size, ranks, "backward") for size in partial if ranks > 1]
        found += _sharding(strategy, model, sizes)
    else:
        if partial and ranks > 1:
            found.append(_along_tensor(sum(partial), ranks, "gradients"))
        size = FP32_BYTES * model.layers.local_elements(ranks)
        found += _averaging(size, sizes, "gradients")
    if model.stages is not None:
        found += _between_stages(strategy, model.stages, sizes["pipeline"])
    return sorted(found, key=lambda op: PHASES.index(op.phase))


def replica_axis(sizes: Mapping[Any, int]) -> str:
    """Return along which dimensions the ranks are that keep the same: all that have several."""
    if sizes["context"] == 1:
        return "data"
    return "context" if sizes["data"] == 1 else "data_context"


def _along_tensor(elements: int, ranks: int, phase: str) -> Operation:
    return Operation("all_reduce", FP32_BYTES * elements, "tensor", ranks, phase)


def _averaging(num_bytes: int, sizes: Mapping[Any, int], phase: str) -> list[Operation]:
    replicas = sizes["data"] * sizes["context"]
    if replicas == 1:
        return []
    return [Operation("all_reduce", num_bytes, replica_axis(sizes), replicas, phase)]


def _sharding(strategy: Mesh, model: MeshModel, sizes: Mapping[Any, int]) -> list[Operation]:
    """Return what FSDP2 sends: blocks are gathered twice, the rest once; in a pipeline all once."""
    shards, found = sizes["shard"], []
    again = sizes["pipeline"] == 1
    groups = model.layers.gathered
    for number, group in enumerate(groups):
        padded = [_padded(shape, sizes["tensor"], shards) for shape in group]
        size = FP32_BYTES * sum(padded)
        if size == 0:
            continue
        found.append(Operation("all_gather", size, "shard", shards, "forward"))
        if again and number + 1 < len(groups):
            found.append(Operation("all_gather", size, "shard", shards, "backward"))
        found.append(Operation("reduce_scatter", size, "shard", shards, "backward"))
        found += _averaging(size // shards, sizes, "backward")
    return found


def _padded(parameter: Shape, ranks: int, shards: int) -> int:
    """Return the elements of a rank's part of a parameter, its rows a multiple of the shards."""
    shape, divided = parameter
    local = [size // ranks if dim == divided else size for dim, size in enumerate(shape)]
    return prod([-(-local[0] // shards) * shards, *local[1:]])


def _between_stages(strategy: Mesh, stages: StageModel, ranks: int) -> list[Operation]:
    sent = [(size, "forward") for size in stages.sent_forward_bytes]
    sent += [(size, "backward") for size in stages.sent_backward_bytes]
    found = [
        Operation("send", size, "pipeline", ranks, phase)
        for size, phase in sent
        for _ in range(strategy.microbatches)
    ]
    return found + [
        Operation("all_reduce", size, "pipeline_tied", stages.tied_ranks, "gradients")
        for size in stages.tied_bytes
    ]


GroupModel = DividedModel | MeshModel | AttendingModel | ExpertModel


def model_of_facts(strategy: Grouped, facts: Mapping[str, Any]) -> GroupModel:
    """Return what a rank's first step has shown of the model; raises NoLaw."""
    strategy = expert_groups(strategy) or strategy
    if isinstance(strategy, Mesh):
        return MeshModel.of(facts)
    if isinstance(strategy, Tensor):
        return DividedModel.of(facts)
    if isinstance(strategy, Expert):
        return ExpertModel.of(facts)
    return AttendingModel.of(facts)


def model_of_workload(strategy: Grouped, workload: WorkloadSpec, samples: int) -> GroupModel | None:
    """Return the model of a built-in workload before anything was run; None: it is not known."""
    strategy = expert_groups(strategy) or strategy
    if isinstance(strategy, Mesh):
        return _mesh_of_workload(strategy, workload, samples)
    if isinstance(strategy, Tensor) and isinstance(workload, GptShape | MlpShape):
        return model_of_preset(workload, samples, strategy.sequence)
    if isinstance(strategy, Context) and isinstance(workload, GptShape):
        return AttendingModel.of_preset(workload, samples)
    if isinstance(strategy, Expert) and isinstance(workload, MoeShape):
        return ExpertModel.of_preset(workload, samples)
    return None


def _mesh_of_workload(strategy: Mesh, workload: WorkloadSpec, samples: int) -> MeshModel | None:
    """Return the model of a mesh of replicated tensor groups; None: there are other divisions."""
    others = strategy.shard != 1 or strategy.pipeline > 1 or strategy.context > 1
    if others or not strategy.divides_layers or not isinstance(workload, GptShape | MlpShape):
        return None
    return MeshModel(model_of_preset(workload, samples, strategy.sequence))


def group_operations(
    strategy: Grouped, model: GroupModel, world_size: int, rank_batch: int
) -> list[Operation]:
    """Return what a rank takes part in during a step, in order; raises NoLaw."""
    strategy = expert_groups(strategy) or strategy
    if isinstance(strategy, Mesh):
        assert isinstance(model, MeshModel)
        return operations_of_mesh_step(strategy, model, world_size, rank_batch)
    if isinstance(strategy, Tensor):
        assert isinstance(model, DividedModel)
        return operations_of_step(strategy, model, world_size, rank_batch)
    if isinstance(strategy, Expert):
        assert isinstance(model, ExpertModel)
        return operations_of_expert_step(strategy, model, world_size, rank_batch)
    assert isinstance(model, AttendingModel)
    return operations_of_context_step(strategy, model, world_size, rank_batch)


def why_no_group_law(strategy: Grouped) -> str | None:
    """Say why there is no formula for what a strategy sends; None: there is one."""
    return why_no_law(strategy) if isinstance(strategy, Tensor) else None
