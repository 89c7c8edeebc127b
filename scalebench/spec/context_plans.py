"""Whether a workload's sequence can be divided over the ranks of a context parallel group."""

from scalebench.spec.presets import WorkloadSpec
from scalebench.spec.strategies import Context
from scalebench.spec.workload import ContextPlan


def context_plan_of(workload: WorkloadSpec) -> ContextPlan | None:
    """Return what of a workload is attention; None: it does not say, or is not here."""
    return getattr(workload, "context_plan", None)


def why_whole(strategy: Context, workload: str, plan: ContextPlan | None, n: int) -> str | None:
    """Say why the sequence of a workload cannot be divided at a size; None: it can.

    Args:
        strategy: How it is to be divided.
        workload: Its name.
        plan: The workload's own; None: it has none.
        n: Number of ranks.
    """
    if plan is None:
        return (
            f"{workload} has no context_plan, which says what of it is attention; choose gpt-long, "
            "or give your own workload one"
        )
    reason = strategy.why_not_plan(plan, strategy.ranks_per_group(n))
    return reason and f"{workload}: {reason}"
