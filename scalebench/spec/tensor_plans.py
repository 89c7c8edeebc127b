"""Whether a workload's layers can be divided over the ranks of a tensor group."""

from scalebench.spec.presets import WorkloadSpec
from scalebench.spec.strategies import Tensor
from scalebench.spec.workload import TensorPlan


def tensor_plan_of(workload: WorkloadSpec) -> TensorPlan | None:
    """Return how the layers of a workload are divided; None: it does not say, or is not here."""
    return getattr(workload, "tensor_plan", None)


def why_undivided(strategy: Tensor, workload: str, plan: TensorPlan | None, n: int) -> str | None:
    """Say why the layers of a workload cannot be divided at a size; None: they can.

    Args:
        strategy: How they are to be divided.
        workload: Its name.
        plan: The workload's own; None: it has none.
        n: Number of ranks.
    """
    if plan is None:
        return (
            f"{workload} has no tensor_plan, which says how its layers are divided; choose gpt or "
            "mlp, or give your own workload one"
        )
    reason = strategy.why_not_plan(plan, strategy.ranks_per_group(n))
    return reason and f"{workload}: {reason}"
