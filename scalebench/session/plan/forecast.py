"""What a plan will cost before it is run: rows, memory of the model's state, wall clock."""

from collections.abc import Mapping
from dataclasses import dataclass

from scalebench.costmodel.memory import predict_state_bytes
from scalebench.costmodel.tensor_layers import model_of_preset
from scalebench.session.plan import Plan
from scalebench.spec import (
    Cell,
    Context,
    Expert,
    Mesh,
    Pipeline,
    Script,
    Tensor,
    expert_groups,
)
from scalebench.spec.presets import CustomTarget, GptShape, MlpShape, MoeShape
from scalebench.spec.script import ScriptTarget

START_S = 0.5
"""Usual time from decision to first step of a launch on two cores, seconds."""
INSPECTION_S = 1.0
"""Usual time of an inspecting launch of a small model, seconds."""
WARMUP_SHARE = 0.5
"""Usual warm-up, as a share of the window."""


@dataclass(frozen=True)
class ForecastRow:
    """One row of the plan.

    Attributes:
        num_launches: Those that are timed and those that check.
        num_checks: Of these, launches that check results and count memory, and are not timed.
        state_bytes: Predicted parameters, gradients, optimizer state and buckets per rank;
            without activations. None: the number of parameters of a rank is not known.
    """

    cell: Cell
    num_launches: int
    num_checks: int
    state_bytes: int | None


@dataclass(frozen=True)
class Forecast:
    """All rows, and how long the whole may take.

    Attributes:
        wall_s: Estimated from usual times, not measured; None: see ``depends_on``. Without further
            rounds for a precision.
        depends_on: What decides how long it takes, in words, where that is not known.
        num_independent: Launches of plain ranks that send nothing, which belong to no row.
    """

    rows: tuple[ForecastRow, ...]
    wall_s: float | None
    depends_on: str = ""
    num_independent: int = 0


def forecast(
    plan: Plan, num_parameters: Mapping[str, int], script_launch_s: float | None = None
) -> Forecast:
    """Estimate what a plan costs.

    Args:
        plan: What would be run.
        num_parameters: Of users' own workloads, by name.
        script_launch_s: What a launch of the user's own script took before; None: not known.
    """
    cells: dict[tuple[str, str, int], list[Cell]] = {}
    for cell in plan.cells:
        if cell.purpose == "independent":
            continue
        cells.setdefault(cell.row_key, []).append(cell)
    rows = tuple(
        ForecastRow(
            cell=launches[0],
            num_launches=0 if launches[0].skip_reason else len(launches),
            num_checks=0
            if launches[0].skip_reason
            else sum(cell.purpose == "inspect" for cell in launches),
            state_bytes=_state_bytes(launches[0], num_parameters),
        )
        for launches in cells.values()
    )
    num_independent = sum(cell.purpose == "independent" for cell in plan.cells)
    unknown = dict.fromkeys(_depends_on(cell, script_launch_s) for cell in plan.cells)
    depends_on = " and on ".join(filter(None, unknown))
    wall_s = None if depends_on else _wall_s(plan, script_launch_s)
    return Forecast(rows, wall_s, depends_on, num_independent)


def _state_bytes(cell: Cell, num_parameters: Mapping[str, int]) -> int | None:
    if isinstance(cell.strategy, Pipeline):
        return None  # the ranks hold different parts of the model
    if isinstance(cell.workload, ScriptTarget):
        return None
    experts = expert_groups(cell.strategy)
    if experts is not None:
        return _state_bytes_of_experts(cell, experts)
    if isinstance(cell.strategy, Tensor):
        return _state_bytes_of_tensor(cell, cell.strategy)
    if isinstance(cell.strategy, Context) and isinstance(cell.workload, GptShape):
        return predict_state_bytes(cell.strategy, cell.workload.num_parameters)
    if isinstance(cell.workload, CustomTarget):
        known = num_parameters.get(cell.workload.name)
    else:
        known = cell.workload.num_parameters
    if known is None:
        return None
    return predict_state_bytes(cell.strategy, known, cell.world_size)


def _state_bytes_of_tensor(cell: Cell, strategy: Tensor) -> int | None:
    """Return what a rank of a tensor group keeps; None: the plan of the layers is not known."""
    if cell.skip_reason is not None or not isinstance(cell.workload, GptShape | MlpShape):
        return None
    model = model_of_preset(cell.workload, cell.rank_batch, strategy.sequence)
    if isinstance(strategy, Mesh) and strategy.pipeline > 1:
        return None  # the ranks hold different parts of the model
    own = model.local_elements(strategy.ranks_per_group(cell.world_size))
    if isinstance(strategy, Mesh):
        own //= strategy.ranks_per_shard_group(cell.world_size)
    return predict_state_bytes(strategy, own)


def _state_bytes_of_experts(cell: Cell, strategy: Expert) -> int | None:
    """Return what a rank keeps that has a part of the experts; None: their size is not known."""
    shape = cell.workload
    if cell.skip_reason is not None or not isinstance(shape, MoeShape):
        return None
    in_experts = shape.layers * shape.experts * shape.expert_parameters
    elsewhere = in_experts - in_experts // strategy.ranks_per_group(cell.world_size)
    return predict_state_bytes(strategy, shape.num_parameters - elsewhere)


def _depends_on(cell: Cell, script_launch_s: float | None) -> str:
    """Return what decides how long a launch takes, where usual times do not tell; else nothing."""
    if cell.skip_reason:
        return ""
    if isinstance(cell.strategy, Script):
        return "how long the script takes to start and to step" if script_launch_s is None else ""
    if cell.race:
        return f"how long {cell.race.samples:,} samples of a race take to train on"
    return "the step time" if cell.steps.steps is not None else ""


def _wall_s(plan: Plan, script_launch_s: float | None) -> float:
    total = 0.0
    for cell in plan.cells:
        if cell.skip_reason:
            continue
        if isinstance(cell.strategy, Script) and script_launch_s is not None:
            total += script_launch_s
            continue
        clean_s = max(cell.steps.window_s, cell.steps.energy_s or 0.0)
        window = INSPECTION_S if cell.purpose == "inspect" else clean_s
        total += START_S + window * (1 if cell.purpose == "inspect" else 1 + WARMUP_SHARE)
    return min(total, plan.spec.budget_s) if plan.spec.budget_s else total
