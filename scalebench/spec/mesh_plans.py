"""Whether the dimensions of a mesh can divide a workload: its matrices, its tokens, its layers."""

from dataclasses import replace

from scalebench.spec.context_plans import context_plan_of, why_whole
from scalebench.spec.presets import GptShape, WorkloadSpec
from scalebench.spec.strategies import Mesh
from scalebench.spec.tensor_plans import tensor_plan_of, why_undivided
from scalebench.spec.workload import ContextPlan, TensorPlan


def why_no_mesh_of(strategy: Mesh, workload: WorkloadSpec, n: int) -> str | None:
    """Say why a mesh of N ranks cannot divide a built-in workload; None: it can."""
    plans = tensor_plan_of(workload), context_plan_of(workload)
    stages = strategy.chunks * strategy.axis_sizes(n)["pipeline"]
    layers = workload.layers + 2 if isinstance(workload, GptShape) else None
    if layers is not None and stages > layers:
        return (
            f"{workload.name} has {layers} layers, with the embedding and the output, for {stages} "
            "stages; choose a smaller pipeline or fewer chunks"
        )
    return why_no_mesh(strategy, workload.name, *plans, n)


def why_no_mesh(
    strategy: Mesh,
    workload: str,
    tensor_plan: TensorPlan | None,
    context_plan: ContextPlan | None,
    n: int,
) -> str | None:
    """Say why a mesh of N ranks cannot divide a workload by its plans; None: it can.

    Args:
        strategy: Which dimensions it has.
        workload: Its name.
        tensor_plan: None: the workload has none.
        context_plan: None: likewise.
        n: Number of ranks.
    """
    sizes = strategy.axis_sizes(n)
    if strategy.divides_layers:
        part = tensor_plan
        if part is not None and part.sequence is not None:
            part = replace(part, sequence=part.sequence // sizes["context"])
        reason = why_undivided(strategy, workload, part, n)
        if reason is not None:
            return reason
    if strategy.context > 1:
        plan = own_heads(context_plan, sizes["tensor"])
        return why_whole(strategy.as_context(), workload, plan, sizes["context"])
    return None


def own_heads(plan: ContextPlan | None, tensor_ranks: int) -> ContextPlan | None:
    """Return a plan with the heads that a rank of a tensor group has."""
    return None if plan is None else replace(plan, heads=plan.heads // tensor_ranks)
