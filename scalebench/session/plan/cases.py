"""What a user asked for: the suites, the cases that are run, and their launches for recovery."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from scalebench.errors import UsageError
from scalebench.grouping import by_key
from scalebench.records.run import LargestBatch, RunSpec
from scalebench.spec import (
    STRATEGIES,
    Case,
    Cell,
    Collectives,
    Device,
    Expert,
    Plain,
    Scaling,
    Script,
    StepPlan,
    Strategy,
    Suite,
)
from scalebench.spec.presets import (
    CustomTarget,
    PacedShape,
    WorkloadSpec,
    resolve_workload,
    routed_workload,
)
from scalebench.spec.recovery import Race, Recovery
from scalebench.spec.suites import ENERGY_WINDOW_S, matches, words
from scalebench.spec.world import VirtualHosts, World

QUICK = {"window_s": 0.25, "min_steps": 5, "rounds_s": 0.25}
ENERGY_S = 1.1 * ENERGY_WINDOW_S
"""With a margin: the ranks agree on seconds of steps, the window is one of the clock."""
QUICK_REPEATS = 1
PRECISION = 0.03
"""Wanted half-width of the interval of every row's efficiency, unless the user says."""
PRECISION_BUDGET_S = 90.0
"""Time to reach it, for each suite."""
QUICK_COLLECTIVES = {"max_bytes": 2**18, "repeats": 3}


@dataclass(frozen=True)
class Request:
    """What the user asked for; None means: as the suite, or the machine, says.

    Attributes:
        selection: Expression that chooses cases; see `scalebench.spec.suites`.
        shared: Launch the rows of a suite together and let them take turns; None: on the CPU.
        pinned: See `scalebench.spec.Job`; None: but for a user's script.
        threads: Intra-op threads of each rank; None: the cores divided by the largest size.
        notices: What is known already that the reader of the run has to know.
        only: Rows, as `scalebench.session.plan.cells.row_name` writes them; none: all.
    """

    world_sizes: tuple[int, ...] | None = None
    device: Device | None = None
    oversubscribe: bool = False
    workload: str | None = None
    autocast: bool | Literal["float16"] | None = None
    compile: bool | None = None
    scaling: Scaling | None = None
    batch_size: int | None = None
    steps: int | None = None
    repeats: int | None = None
    precision: float | None = None
    target_loss: float | None = None
    time_limit_s: float | None = None
    budget_s: float | None = None
    quick: bool = False
    shared: bool | None = None
    pinned: bool | None = None
    threads: int | None = None
    trace: bool = True
    selection: str | None = None
    only: tuple[str, ...] = ()
    virtual_hosts: VirtualHosts | None = None
    link_profile: Path | None = None
    max_batch: bool = False
    memory_limit_bytes: int | None = None
    keep_going: bool = False
    anonymise: bool = False
    allow_busy: bool = False
    checkpoint_dir: Path | None = None
    notices: tuple[str, ...] = ()


_OPTIONS = {
    "world_sizes": "--gpus",
    "selection": "-k",
    "time_limit_s": "--time-limit",
    "budget_s": "--budget",
    "memory_limit_bytes": "--memory-limit",
}


def option_of(field: str) -> str:
    """Return the option of ``scalebench run`` that a field of a request has, if it has one."""
    return _OPTIONS.get(field, f"--{field.replace('_', '-')}")


@dataclass(frozen=True)
class Plan:
    """What will be run: the resolved specification, the cells in order, what to tell first.

    Attributes:
        largest_batches: What ``--max-batch`` found; empty: it was not asked for.
    """

    spec: RunSpec
    cells: tuple[Cell, ...]
    notices: tuple[str, ...]
    largest_batches: tuple[LargestBatch, ...] = ()

    @property
    def custom_workloads(self) -> list[CustomTarget]:
        """The users' own workloads among the cells, each once."""
        found = {c.workload.name: c.workload for c in self.cells}
        return [w for w in found.values() if isinstance(w, CustomTarget)]


@dataclass(frozen=True)
class Machine:
    """What the plan has to know of the machine, or of the world that ranks are taken from.

    Attributes:
        unusable: Why ranks cannot train on devices that are there, and the remedy; None: there
            are none.
        launcher_name: Of the launcher that starts the ranks, where no world has started them.
        launcher_shares: Whether it can start rows together that take turns.
        emulates_bfloat16: Name of a GPU on which torch emulates bfloat16; None: on none.
    """

    num_gpus: int
    num_cores: int
    world: World | None = None
    launcher_name: str = "local"
    launcher_shares: bool = True
    emulates_bfloat16: str | None = None
    unusable: str | None = None

    @property
    def launcher(self) -> str:
        """Who starts the ranks."""
        return self.launcher_name if self.world is None else self.world.launcher

    @property
    def shares(self) -> bool:
        """Whether the launcher can start rows together that take turns."""
        return self.world is None and self.launcher_shares


def check_recovery(request: Request, suites: Sequence[Suite]) -> None:
    """Raise UsageError for options about checkpoints where nothing is saved."""
    if request.checkpoint_dir is not None and not any(suite.recovery for suite in suites):
        raise UsageError(
            f"--checkpoint-dir {request.checkpoint_dir}: no given suite saves checkpoints. Run "
            "recovery, or a suite with recovery=Recovery(...)."
        )


def recovery_of(suite: Suite, request: Request) -> Recovery | None:
    """Return how a suite saves and fails; a quick one does both as seldom as it can."""
    if suite.recovery is None or not request.quick:
        return suite.recovery
    return suite.recovery.model_copy(update={"saves": 2, "fault_repeats": 1})


def recovery_cells(rows: Sequence[Cell], spec: RunSpec) -> list[Cell]:
    """Return the launches that save, at all sizes, then those that restore, then those that fail.

    Ranks are made to fail only where scalebench itself starts them: on this machine, on virtual
    hosts.
    """
    plans = {suite.name: suite.recovery for suite in spec.suites if suite.recovery is not None}
    saved = [
        _saving(row, plans[row.suite])
        for row in rows
        if row.suite in plans and row.skip_reason is None and not isinstance(row.strategy, Plain)
    ]
    sizes = by_key(((cell.suite, cell.case), cell.world_size) for cell in saved)
    restored = [_restoring(cell, sizes[cell.suite, cell.case]) for cell in saved]
    failing = [
        cell.model_copy(update={"purpose": "fail"})
        for cell in saved
        if spec.launcher in ("local", "lab") and _fails(cell)
    ]
    return [*saved, *restored, *failing]


def _fails(cell: Cell) -> bool:
    plan = cell.recovery
    assert plan is not None, "every cell that saves has a plan"
    chosen = plan.faulty_cases is None or cell.case in plan.faulty_cases
    return bool(plan.faults) and chosen


def _restoring(cell: Cell, sizes: Sequence[int]) -> Cell:
    """Return the launch that loads what was saved at these numbers of ranks, at its own first."""
    others = sorted(size for size in sizes if size != cell.world_size)
    return cell.model_copy(
        update={"purpose": "restore", "restore_from": (cell.world_size, *others)}
    )


def _saving(row: Cell, plan: Recovery) -> Cell:
    """Return the launch that saves a row's state.

    Raises:
        UsageError: The state of its strategy cannot be saved.
    """
    if not row.strategy.can_be_saved:
        names = ", ".join(one.__name__ for one in STRATEGIES.values() if one.can_be_saved)
        raise UsageError(
            f"Case {row.case} of suite {row.suite}: checkpoints of {row.strategy.kind} are not "
            f"supported. Give a strategy among {names}, or leave recovery out of the suite."
        )
    if row.strategy.autocast == "float16":
        raise UsageError(
            f"Case {row.case} of suite {row.suite}: checkpoints do not hold the loss scale of "
            "float16, so the job would not continue bit for bit. Give --dtype float32."
        )
    return row.model_copy(update={"purpose": "save", "part_batches": (), "recovery": plan})


def workload_of(case: Case, name: str, device: Device) -> WorkloadSpec:
    """Return the workload called ``name``.

    Raises:
        UsageError: There is none, it brings its own loader and the case asks for one, or it has
            nothing to do on the device.
    """
    workload = resolve_workload(name, device)
    if case.loader is not None and isinstance(workload, CustomTarget):
        raise UsageError(
            f"Case {case.name} feeds a built-in workload through a DataLoader, and {name} brings "
            "its own batches. Choose a case without a loader, and return a DataLoader in "
            f"Workload(batches=...) of {name}; or give a built-in --workload."
        )
    if isinstance(workload, PacedShape) and device == "cuda":
        raise UsageError(
            f"--workload {name} only waits, and does not use a GPU. Give --device cpu, or another "
            "workload."
        )
    return workload


def precision_of(
    request: Request, suites: Sequence[Suite], device: Device, machine: Machine
) -> dict[str, Any]:
    """Return whether rows take turns, how precisely to know efficiency, and the time for it.

    A user who says how many launches or steps to make gets those and no more; so does a suite with
    ``steps`` or with a single launch.

    Raises:
        UsageError: Rows are to take turns, and the launcher starts one at a time.
    """
    if request.shared and not machine.shares:
        raise UsageError(
            f"--shared: the launcher {machine.launcher} starts one row at a time. Leave --shared "
            "out, or run on this machine alone."
        )
    shared = device == "cpu" and machine.shares if request.shared is None else request.shared
    exact = request.quick or request.repeats is not None or request.steps is not None
    exact = exact or any(s.steps.steps or s.repeats == 1 or s.race or s.recovery for s in suites)
    precision = PRECISION if shared and device == "cpu" and not exact else None
    precision = request.precision or precision
    budget_s = request.budget_s or PRECISION_BUDGET_S * len(suites)
    return {
        "shared": shared,
        "precision": precision,
        "precision_budget_s": None if precision is None else budget_s,
    }


def repeats_of(request: Request, suite: Suite) -> int:
    """Return the launches of each cell."""
    return request.repeats or (QUICK_REPEATS if request.quick else suite.repeats)


def step_plan_of(request: Request, suite: Suite, device: Device) -> StepPlan:
    """Return how long the steps of each launch are looked at: on CUDA, long enough for energy."""
    changes: dict[str, Any] = dict(QUICK) if request.quick else {}
    changes |= {"steps": request.steps} if request.steps else {}
    changes |= {} if request.trace else {"trace": False}
    plan = suite.steps.model_copy(update=changes)
    is_short = request.quick or plan.steps is not None
    if device == "cuda" and plan.energy_s is None and not is_short:
        return plan.model_copy(update={"energy_s": ENERGY_S})
    return plan


def with_request(suite: Suite, request: Request, device: Device) -> Suite:
    """Return the suite with the request's values in place of its own."""
    compiled = device == "cuda" if request.compile is None else request.compile
    cases = tuple(
        case.model_copy(
            update={
                "strategy": _executed(case.strategy, request.autocast or False, compiled),
                "workload": _workload_name(case, suite, request, device),
                "batch_size": request.batch_size or case.batch_size or suite.batch_size,
            }
        )
        for case in suite.cases
    )
    collectives = suite.collectives and _collectives_to_time(suite, suite.collectives, request)
    changes = {
        "cases": cases,
        "collectives": collectives,
        "scaling": request.scaling or suite.scaling,
        "steps": step_plan_of(request, suite, device),
        "repeats": repeats_of(request, suite),
        "race": race_of(suite, request),
        "recovery": recovery_of(suite, request),
        "cell_limit_s": request.time_limit_s or suite.cell_limit_s,
    }
    return suite.model_copy(update=changes)


def _workload_name(case: Case, suite: Suite, request: Request, device: Device) -> str:
    """Return the workload's name; how tokens are routed is a part of it, so the baseline's too."""
    name = request.workload or case.workload or suite.workload
    if isinstance(case.strategy, Expert):
        return routed_workload(case.strategy, name, device)
    return name


def _executed(strategy: Strategy, autocast: bool | Literal["float16"], compiled: bool) -> Strategy:
    """Return a strategy with the run's arithmetic; a script decides about its own."""
    if isinstance(strategy, Script):
        return strategy
    if autocast == "float16" and (not strategy.scales_loss or strategy.rounds_parameters):
        autocast = False
    changes = {"autocast": strategy.autocast or autocast, "compile": strategy.compile or compiled}
    return strategy.model_copy(update=changes)


def _collectives_to_time(suite: Suite, asked: Collectives, request: Request) -> Collectives:
    """Return the collectives with what the request says; ``-k`` chooses where nothing trains."""
    changes: dict[str, Any] = dict(QUICK_COLLECTIVES) if request.quick else {}
    if request.selection is not None and not suite.cases:
        chosen = tuple(op for op in asked.operations if matches(request.selection, op))
        if not chosen:
            raise UsageError(
                f"-k {request.selection!r} matches no operation of suite {suite.name}. "
                f"Operations: {', '.join(asked.operations)}."
            )
        changes["operations"] = chosen
    return asked.model_copy(update=changes)


def cases_to_run(suite: Suite, selection: str | None, rows: Sequence[str] = ()) -> list[Case]:
    """Return the chosen cases, each after the plain baseline that it is measured against."""
    chosen = chosen_cases(suite, selection, rows)
    if suite.race is not None and suite.baseline is not None:
        return list(dict.fromkeys([suite.baseline, *chosen]))
    ordered: list[Case] = []
    for case in chosen:
        baseline = _baseline_of(case, ordered, suite)
        ordered += [baseline, case]
    return list(dict.fromkeys(ordered))


def chosen_cases(suite: Suite, selection: str | None, rows: Sequence[str] = ()) -> list[Case]:
    """Return the cases to run.

    An optional one needs a word that no default case's name has, or one of ``rows`` to be its own.
    """
    if selection is None or not suite.cases:
        asked = {row.rpartition(".n")[0] for row in rows}
        return [
            case
            for case in suite.cases
            if not case.optional or f"{suite.name}.{case.name}" in asked
        ]
    default_names = [case.name for case in suite.cases if not case.optional]
    special = [w for w in words(selection) if not any(w in name for name in default_names)]
    chosen = [
        case
        for case in suite.cases
        if matches(selection, case.name)
        and (not case.optional or any(word in case.name for word in special))
    ]
    if not chosen:
        names = ", ".join(case.name for case in suite.cases)
        raise UsageError(f"-k {selection!r} matches no case of suite {suite.name}. Cases: {names}.")
    return chosen


def _baseline_of(case: Case, known: Sequence[Case], suite: Suite) -> Case:
    """Return the plain case that a case is measured against.

    One that is fed by the same loader, if the suite has it; else the one with resident batches,
    so that what the loader costs is part of the loss.
    """
    if isinstance(case.strategy, Script):
        return case  # at N=1
    wanted = case.strategy.baseline()
    for loader in (case.loader, None):
        for other in (*known, *suite.cases):
            same_work = (other.workload, other.batch_size) == (case.workload, case.batch_size)
            if other.strategy == wanted and same_work and other.loader == loader:
                return other
    plain = _baseline_name(wanted, case.workload)
    name, number = plain, 2
    taken = {c.name for c in (*known, *suite.cases)}
    while name in taken:
        name, number = f"{plain}-{number}", number + 1
    return Case(name=name, strategy=wanted, workload=case.workload, batch_size=case.batch_size)


def _baseline_name(strategy: Plain, workload: str | None) -> str:
    half = strategy.autocast == "float16"
    marks = [("-bf16", strategy.autocast is True), ("-fp16", half), ("-compiled", strategy.compile)]
    _, *routing = (workload or "").split("+")  # as in gpt-moe+top-1
    of_routing = "".join(f"-{word}" for word in routing)
    return "plain" + "".join(mark for mark, on in marks if on) + of_routing.replace(".", "-")


QUICK_EVALUATIONS = 4


def check_races(request: Request, suites: Sequence[Suite]) -> None:
    """Raise UsageError for options that contradict a race, or need one."""
    races = [suite.name for suite in suites if suite.race is not None]
    if request.target_loss is not None and not races:
        raise UsageError(
            f"--target-loss {request.target_loss:g} needs a suite that is a race, and there is no "
            "race among the given suites. Run batch, or a suite with race=Race(...)."
        )
    if not races:
        return
    if request.steps is not None:
        raise UsageError(
            f"--steps {request.steps}: every case of suite {races[0]} trains on the samples that "
            "its race says. Leave out --steps."
        )
    if request.batch_size is not None:
        raise UsageError(
            f"--batch-size {request.batch_size}: the cases of suite {races[0]} race with the "
            "batches that it gives them. Leave out --batch-size."
        )
    if request.max_batch:
        raise UsageError(
            f"--max-batch changes batches, and the cases of suite {races[0]} race with those that "
            "it gives them. Leave out --max-batch."
        )


def race_of(suite: Suite, request: Request) -> Race | None:
    """Return a suite's race with the request's target; a quick one ends after few evaluations."""
    race = suite.race
    if race is None:
        return None
    changes: dict[str, float | int | None] = {}
    if request.target_loss is not None:
        changes["target_loss"] = request.target_loss
    quick_samples = QUICK_EVALUATIONS * race.evaluate_every
    if request.quick and race.samples > quick_samples:
        changes |= {"samples": quick_samples, "target_after": None}
    return race.model_copy(update=changes)
