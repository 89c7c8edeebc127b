"""What a plan will cost before it is run: rows, memory of the model's state, wall clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalebench.analysis.run import load_run
from scalebench.costmodel.layers.tensor_layers import model_of_preset
from scalebench.costmodel.memory import predict_state_bytes
from scalebench.errors import ScalebenchError
from scalebench.grouping import by_key
from scalebench.records.storage.folder import find_runs
from scalebench.session.plan import Plan
from scalebench.spec import (
    Cell,
    Context,
    Device,
    Expert,
    Mesh,
    Pipeline,
    Script,
    Suite,
    Tensor,
    expert_groups,
)
from scalebench.spec.presets import CustomTarget, GptShape, MlpShape, MoeShape
from scalebench.spec.script import ScriptTarget

START_S: Mapping[Device, float] = {"cpu": 0.5, "cuda": 20.0}
"""Usual time of a launch besides its window, seconds: on two cores; on an H200, compiled (gpt-tiny
16 s, gpt-124m 31 s)."""
INSPECTION_S: Mapping[Device, float] = {"cpu": 1.5, "cuda": 10.0}
"""Usual time of an inspecting launch, seconds: of a small model on two cores; on an H200, compiled
(gpt-tiny 4 s, gpt-124m 9 to 13 s)."""
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

    ``num_parameters``: of users' own workloads, by name. ``script_launch_s``: what a launch of the
    user's own script took before; None: not known.
    """
    cells = by_key((cell.row_key, cell) for cell in plan.cells if cell.purpose != "independent")
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
    wall_s, depends_on = usual_time(plan.cells, plan.spec.budget_s, script_launch_s)
    return Forecast(rows, wall_s, depends_on, num_independent)


def usual_time(
    cells: Sequence[Cell], budget_s: float | None = None, script_launch_s: float | None = None
) -> tuple[float | None, str]:
    """Return how long launches usually take together, seconds; or None, and what decides it.

    No further launch begins after ``budget_s``. ``script_launch_s``: as for `forecast`.
    """
    unknown = dict.fromkeys(_depends_on(cell, script_launch_s) for cell in cells)
    depends_on = " and on ".join(filter(None, unknown))
    if depends_on:
        return None, depends_on
    total = sum(_launch_s(cell, script_launch_s) for cell in cells)
    return min(total, budget_s) if budget_s else total, ""


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
        own //= strategy.axis_sizes(cell.world_size)["shard"]
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


def _launch_s(cell: Cell, script_launch_s: float | None) -> float:
    if cell.skip_reason:
        return 0.0
    if isinstance(cell.strategy, Script) and script_launch_s is not None:
        return script_launch_s
    if cell.purpose == "inspect":
        return INSPECTION_S[cell.device]
    clean_s = max(cell.steps.window_s, cell.steps.energy_s or 0.0)
    return START_S[cell.device] + clean_s * (1 + WARMUP_SHARE)


MOST_RUNS = 20
"""So many of the newest runs are looked at."""


def seconds_of_a_launch(suites: Sequence[Suite], runs: Path) -> float | None:
    """Return what a launch of the suites' script took in the newest run of it, seconds.

    Returns:
        None: there is no script, or no run of it.
    """
    wanted = next((suite.script for suite in suites if suite.script is not None), None)
    if wanted is None or not runs.is_dir():
        return None
    for root in list(reversed(find_runs(runs)))[:MOST_RUNS]:
        try:
            results = load_run(root).results.values()
        except (ScalebenchError, OSError):
            continue
        found = [r.wall_s for r in results if _is_of(r.cell.workload, wanted) and r.wall_s]
        if found:
            return sum(found) / len(found)
    return None


def _is_of(workload: object, wanted: ScriptTarget) -> bool:
    """Tell whether a launch was one of the same program, whatever its arguments."""
    if not isinstance(workload, ScriptTarget):
        return False
    return (workload.program, workload.module) == (wanted.program, wanted.module)
