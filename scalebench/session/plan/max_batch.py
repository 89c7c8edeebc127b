"""What a plan will need before it is run: the largest batch that fits, memory, time, schedules.

The largest batch of a rank that fits, for each case and number of ranks.

Doubling until a batch does not fit, then bisection between the last that did and the first that
did not. What fits is found out by training: each probe is a separate launch, so that nothing of
one is left in memory for the next. Probes run eagerly: `torch.compile` would take minutes for every
batch, and what is compiled needs no more memory as a rule.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scalebench.analysis.run import load_run
from scalebench.costmodel.memory import predict_state_bytes
from scalebench.costmodel.pipeline_schedule import (
    FROM_TORCH,
    Action,
    Schedule,
    check,
    plan_schedule,
    style_of,
    why_not,
)
from scalebench.costmodel.pipeline_step import Timeline
from scalebench.costmodel.tensor_layers import model_of_preset
from scalebench.errors import ScalebenchError, UsageError
from scalebench.grouping import by_key
from scalebench.launch.local import LocalLauncher
from scalebench.records.folder import find_runs
from scalebench.records.run import CellResult, LargestBatch
from scalebench.session.plan import Plan, Request
from scalebench.spec import (
    Cell,
    Context,
    Ddp,
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

PRECISION = 16
"""The bisection ends when the gap is at most this part of the batch."""

Fits = Callable[[Cell], bool]
"""Tells whether a probe's batch fits. Raises CannotProbe where something else goes wrong."""
START_S: Mapping[Device, float] = {"cpu": 0.5, "cuda": 20.0}
"""Usual time of a launch besides its window, seconds: on two cores; on an H200, compiled (gpt-tiny
16 s, gpt-124m 31 s)."""
INSPECTION_S: Mapping[Device, float] = {"cpu": 1.5, "cuda": 10.0}
"""Usual time of an inspecting launch, seconds: of a small model on two cores; on an H200, compiled
(gpt-tiny 4 s, gpt-124m 9 to 13 s)."""
WARMUP_SHARE = 0.5
"""Usual warm-up, as a share of the window."""
MOST_PASSES = 2**17
"""Forward passes of all stages beyond which working out a schedule takes more than seconds."""
FEWEST_CHUNKS = {"one": 1, "two": 2, "any": 1}
FEWEST_INTERLEAVED = 2
_CHUNKS = {"one": "chunk on each rank", "two": "chunks on each rank"}


class CannotProbe(Exception):
    """A probe failed for another reason than memory; the text says why."""


@dataclass(frozen=True)
class Bracket:
    """What a bisection ends with.

    Attributes:
        fits: The largest number known to fit; 0: not even one.
        too_large: The smallest known not to.
    """

    fits: int
    too_large: int


def largest_fitting(fits: Callable[[int], bool], first: int) -> Bracket:
    """Find the largest number that fits, to within one part in `PRECISION`.

    ``fits`` must be true up to some number and false beyond; ``first`` is at least 1.
    """
    low, high = 0, first
    while fits(high):
        low, high = high, 2 * high
    while high - low > max(1, low // PRECISION):
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return Bracket(low, high)


def for_max_batch(request: Request, device: Device) -> Request:
    """Return the request that the search starts from: every rank has its own batch.

    Raises:
        UsageError: Strong scaling was asked for, or there is no limit to find on a CPU.
    """
    if request.scaling == "strong":
        raise UsageError(
            "--max-batch gives every rank the largest batch that fits, which is weak scaling. "
            "Leave out --scaling strong."
        )
    if device == "cpu" and request.memory_limit_bytes is None:
        raise UsageError(
            "--max-batch needs a limit for ranks on CPU, which share the machine's memory: give "
            "--memory-limit, for example --memory-limit 200MB."
        )
    return replace(request, scaling="weak")


def with_largest_batches(plan: Plan, limit_bytes: int | None, fits: Fits) -> Plan:
    """Return the plan with each row's batch as large as fits, and with what was found.

    Rows that cannot be probed stay as they are: the run will say what is wrong with them. Where a
    GPU is full, results are compared at the planned batch: the reference has all ranks' samples.

    The plan is under weak scaling. ``limit_bytes``: of a rank's peak; None: what the device has.
    """
    rows = {cell.row_key: cell for cell in plan.cells if cell.purpose == "measure"}
    found: dict[tuple[str, str, int], LargestBatch] = {}
    several_suites = len(plan.spec.suites) > 1
    notices = list(plan.notices)
    for key, row in rows.items():
        if row.skip_reason is None:
            try:
                found[key] = _search(row, limit_bytes, fits)
            except CannotProbe as reason:
                notices.append(f"{row.case}, N = {row.world_size}: no largest batch: {reason}")
                continue
            notices.append(found[key].notice(with_suite=several_suites))
    whole = [
        cell for cell in plan.cells if cell.purpose not in ("independent", "shard")
    ]  # at other batches
    cells = tuple(_with_batch(cell, found.get(cell.row_key)) for cell in whole)
    return replace(plan, cells=cells, notices=tuple(notices), largest_batches=tuple(found.values()))


def _unit(cell: Cell) -> int:
    """Return what a rank's batch has to be a multiple of."""
    return cell.strategy.accumulate if isinstance(cell.strategy, Ddp) else 1


def _search(row: Cell, limit_bytes: int | None, fits: Fits) -> LargestBatch:
    unit = _unit(row)

    def probe(units: int) -> bool:
        eager = row.strategy.model_copy(update={"compile": False})
        changes = {"purpose": "fit", "memory_limit_bytes": limit_bytes, "strategy": eager}
        return fits(_of_batch(row, units * unit).model_copy(update=changes))

    units = largest_fitting(probe, max(1, row.rank_batch // unit))
    return LargestBatch(
        suite=row.suite,
        case=row.case,
        world_size=row.world_size,
        fits=units.fits * unit,
        too_large=units.too_large * unit,
    )


def _of_batch(cell: Cell, rank_batch: int) -> Cell:
    batches = {"rank_batch": rank_batch, "global_batch": rank_batch * cell.world_size}
    return cell.model_copy(update=batches)


def _with_batch(cell: Cell, largest: LargestBatch | None) -> Cell:
    if largest is None:
        return cell
    if largest.fits == 0:
        reason = f"not even {largest.too_large} samples per rank fit"
        return cell.model_copy(update={"skip_reason": reason})
    if cell.purpose == "inspect" and cell.device == "cuda":
        return cell
    return _of_batch(cell, largest.fits)


def why_too_large(cell: Cell, results: Iterable[CellResult]) -> str | None:
    """Say why a cell need not be tried, or None: it may fit.

    A cell is larger than one that ran out of memory when it has more ranks and each of them holds
    no less: the same model whole, and at least as many samples. Strategies that divide the model
    hold less the more ranks there are, and so does every rank where a global batch is divided.
    """
    if not cell.strategy.keeps_whole_model:
        return None
    for result in results:
        smaller = result.cell
        if (
            result.status == "oom"
            and (smaller.suite, smaller.case) == (cell.suite, cell.case)
            and smaller.world_size < cell.world_size
            and smaller.rank_batch <= cell.rank_batch
        ):
            return (
                f"not tried: N={smaller.world_size} ran out of memory, and a rank needs no less "
                "memory here (--keep-going tries it)"
            )
    return None


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


def schedule_by_name(name: str, ranks: int, microbatches: int, chunks: int | None) -> Schedule:
    """Return a schedule.

    ``name`` is one of `STYLES`. ``chunks``: stages on each rank; None: as many as it has at least.

    Raises:
        UsageError: There is none of this name, or torch refuses these numbers.
    """
    style = style_of(name)
    fewest = FEWEST_CHUNKS[style.chunks]
    if name in ("interleaved-1f1b", "looped-bfs"):
        fewest = FEWEST_INTERLEAVED
    v = fewest if chunks is None else chunks
    if style.chunks != "any" and v != fewest:
        raise UsageError(
            f"-v {v}: {name} has {style.chunks} {_CHUNKS[style.chunks]}. Give -v {fewest}, or "
            "leave -v out."
        )
    if (passes := ranks * microbatches * v) > MOST_PASSES:
        raise UsageError(
            f"-p {ranks} -m {microbatches} -v {v}: that makes p·m·v = {passes:,} forward passes, "
            f"and at most {MOST_PASSES:,} are drawn. Choose smaller numbers."
        )
    reason = why_not(name, ranks, microbatches, v)
    if reason is not None:
        raise UsageError(f"-p {ranks} -m {microbatches} -v {v}: {reason}. Choose other numbers.")
    if name not in FROM_TORCH:
        return plan_schedule(name, ranks, microbatches, v)
    with LocalLauncher() as launcher:
        orders = launcher.schedule(name, ranks, microbatches, v)
    order = tuple(tuple(Action.parse(action) for action in actions) for actions in orders)
    schedule = Schedule(name, microbatches, order)
    check(schedule)
    return schedule


def schedule_as_json(timeline: Timeline) -> dict[str, Any]:
    """Return a dry run as data: every action with start and end, in forward passes."""
    schedule = timeline.schedule
    return {
        "schedule": schedule.name,
        "num_ranks": schedule.num_ranks,
        "num_stages": schedule.num_stages,
        "num_microbatches": schedule.num_microbatches,
        "bubble_ratio": timeline.bubble_ratio,
        "in_flight": schedule.in_flight(),
        "actions": [
            {"rank": rank, **action._asdict(), "start": start, "end": end}
            for rank, actions in enumerate(schedule.ranks)
            for action, start, end in zip(
                actions, timeline.start_s[rank], timeline.end_s[rank], strict=True
            )
        ],
    }
