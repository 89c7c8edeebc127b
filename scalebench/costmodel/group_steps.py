"""What the ranks of a group send that divides samples or a model: by the law of their strategy."""

from collections.abc import Mapping
from typing import Any

from scalebench.costmodel.context_layers import (
    AttendingModel,
    operations_of_context_step,
)
from scalebench.costmodel.expert_layers import ExpertModel, operations_of_expert_step
from scalebench.costmodel.mesh_layers import MeshModel, operations_of_mesh_step
from scalebench.costmodel.tensor_layers import (
    DividedModel,
    Operation,
    model_of_preset,
    operations_of_step,
    why_no_law,
)
from scalebench.spec import Context, Expert, Grouped, Mesh, Tensor, expert_groups
from scalebench.spec.presets import GptShape, MlpShape, MoeShape, WorkloadSpec

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
