"""Whether a workload's experts can be divided over ranks, and how its tokens are routed."""

from collections.abc import Sequence

from scalebench.spec.presets import CustomTarget, MoeShape, WorkloadSpec, resolve_workload
from scalebench.spec.strategies import Expert

NONE = "{name} has no experts; choose gpt-moe, or give your own workload experts"


def routed_workload(strategy: Expert, name: str, device: str) -> str:
    """Return the workload's name, with what the strategy asks of its router behind it.

    Unchanged where the strategy asks for nothing, or for what cannot be: `why_no_experts` says so.
    """
    if strategy.why_not_routing() is not None:
        return name
    shape = resolve_workload(name, device)
    if not isinstance(shape, MoeShape) or _why_not(strategy, shape, 1) is not None:
        return name
    asked = {
        "experts": strategy.experts,
        "top": strategy.top_k,
        "capacity": strategy.capacity_factor,
    }
    options = [f"{word}-{number:g}" for word, number in asked.items() if number is not None]
    return "+".join([name, *options, *(["dropless"] if strategy.dropless else [])])


def why_no_experts(strategy: Expert, workload: WorkloadSpec, n: int) -> str | None:
    """Say why the experts of a workload cannot be divided at a size; None: they can.

    Args:
        strategy: How they are to be divided.
        workload: Whose. What one of the user's own has is only known to its ranks.
        n: Number of ranks.
    """
    if isinstance(workload, CustomTarget):
        asked = {"experts", "top_k", "capacity_factor"} & strategy.model_dump(
            exclude_none=True
        ).keys()
        if asked or strategy.dropless:
            return (
                f"{workload.name} is your own workload, whose model decides how tokens are routed; "
                f"leave {', '.join(sorted(asked)) or 'dropless'} out"
            )
        return None
    if not isinstance(workload, MoeShape):
        return NONE.format(name=workload.name)
    reason = _why_not(strategy, workload, strategy.ranks_per_group(n))
    return reason and f"{workload.name}: {reason}"


def why_not_own_experts(strategy: Expert, name: str, experts: Sequence[int], n: int) -> str | None:
    """Say why the experts of a user's own workload cannot be divided at a size; None: they can.

    Args:
        strategy: How they are to be divided.
        name: Of the workload.
        experts: Of each of its layers.
        n: Number of ranks.
    """
    if not experts:
        return NONE.format(name=name)
    ranks = strategy.ranks_per_group(n)
    reasons = (strategy.why_not_experts(number, 1, ranks) for number in experts)
    reason = next(filter(None, reasons), None)
    return reason and f"{name}: {reason}"


def _why_not(strategy: Expert, shape: MoeShape, ranks: int) -> str | None:
    experts = shape.experts if strategy.experts is None else strategy.experts
    top_k = shape.top_k if strategy.top_k is None else strategy.top_k
    return strategy.why_not_experts(experts, top_k, ranks)
