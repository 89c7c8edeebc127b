"""Before a run: what will be launched, on which machine, and which rows that cannot run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from scalebench import machine
from scalebench.analysis.run import StoredRun
from scalebench.errors import EnvironmentUnfit
from scalebench.launch.base import Launcher
from scalebench.launch.processes import check_loopback
from scalebench.session.machine.survey import refusal
from scalebench.session.plan.cases import Machine, Plan, Request
from scalebench.session.plan.cells import skip_indivisible
from scalebench.session.plan.make import choose_device, make_plan
from scalebench.session.plan.max_batch import for_max_batch
from scalebench.spec import Cell, Execution, FromFramework, Suite
from scalebench.spec.workload import ContextPlan, Divisible, TensorPlan

Installed = Callable[[str], str | None]
"""Returns the version of a distribution; None: it is not installed."""


def installed_version(distribution: str) -> str | None:
    """Return the version of a distribution in this interpreter's environment, or None."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def why_missing(strategy: Execution, installed: Installed = installed_version) -> str | None:
    """Say what a strategy needs that is not installed, and how to get it; None: all is there."""
    if not isinstance(strategy, FromFramework):
        return None
    missing = [name for name in strategy.needs if installed(name) is None]
    if not missing:
        return None
    *others, last = missing
    names = f"{', '.join(others)} and {last} are" if others else f"{last} is"
    return f"{names} not installed; {strategy.install}"


def without_missing_frameworks(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells of a plan, skipped where their framework is not installed."""
    return [
        cell
        if cell.skip_reason is not None or (why := why_missing(cell.strategy)) is None
        else cell.model_copy(update={"skip_reason": why})
        for cell in cells
    ]


def compiles(plan: Plan) -> bool:
    """Tell whether a row of a plan is compiled."""
    return any(cell.skip_reason is None and _is_compiled(cell) for cell in plan.cells)


def without_compiling(
    request: Request, suites: Sequence[Suite], machine: Machine, problem: str
) -> Plan:
    """Return the plan with rows that run eagerly, as it says; a case that asks to is skipped.

    Raises:
        EnvironmentUnfit: The user has asked for compiled rows.
    """
    if request.compile:
        raise EnvironmentUnfit(
            f"--compile: torch.compile does not work here: {problem}. --no-compile runs eagerly."
        )
    told = f"Ranks run eagerly: torch.compile does not work here: {problem}"
    plan = make_plan(
        replace(request, compile=False, notices=(*request.notices, told)), suites, machine
    )
    return replace(plan, cells=tuple(_skipped(cell, problem) for cell in plan.cells))


def _is_compiled(cell: Cell) -> bool:
    return bool(getattr(cell.strategy, "compile", False))


def _skipped(cell: Cell, problem: str) -> Cell:
    if cell.skip_reason is not None or not _is_compiled(cell):
        return cell
    return cell.model_copy(update={"skip_reason": f"torch.compile does not work here: {problem}"})


@dataclass(frozen=True)
class Prepared:
    """A plan that can be carried out here.

    Attributes:
        environment: Fingerprint of the machine.
        num_parameters: Of users' own workloads, by name.
    """

    plan: Plan
    environment: dict[str, Any]
    num_parameters: dict[str, int]


def prepare(launcher: Launcher, request: Request, suites: Sequence[Suite]) -> Prepared:
    """Plan, fingerprint the machine, and try the users' own workloads once.

    Raises:
        UsageError: The request or a workload cannot be used.
        EnvironmentUnfit: CUDA was asked for and there is none, a device cannot be used, --compile
            does not work, or ranks could not connect.
    """
    survey = launcher.survey()
    world = launcher.world
    facts = machine.fingerprint(survey, world)
    emulating = (d["name"] for d in survey["devices"] if not d.get("bfloat16", True))
    here = Machine(
        num_gpus=len(survey["devices"]),
        num_cores=machine.num_cores(),
        world=world,
        launcher_name=launcher.name,
        launcher_shares=launcher.shares,
        emulates_bfloat16=next(emulating, None),
        unusable=refusal(facts),
    )
    if request.max_batch:
        request = for_max_batch(request, choose_device(request, here))
    plan = make_plan(request, suites, here)
    if compiles(plan) and (problem := launcher.why_not_compiled(plan.spec.device)) is not None:
        plan = without_compiling(request, suites, here, problem)
    if world is None and any(
        cell.num_processes > 1 and not cell.virtual_hosts and cell.skip_reason is None
        for cell in plan.cells
    ):
        check_loopback()  # before ranks that need nobody else have been measured for minutes
    described = {
        target.name: launcher.describe(target, plan.spec.device) for target in plan.custom_workloads
    }
    num_parameters = {name: one["num_parameters"] for name, one in described.items()}
    own = {name: own_divisible(name, one) for name, one in described.items()}
    cells = skip_indivisible(plan.cells, own)
    cells = without_missing_frameworks(cells)
    plan = replace(plan, cells=tuple(cells))
    return Prepared(plan, facts | {"threads": plan.spec.threads}, num_parameters)


def own_divisible(name: str, described: Mapping[str, Any]) -> Divisible:
    """Return what a worker described of how a user's own workload can be divided."""
    layers, attention = described["tensor_plan"], described["context_plan"]
    return Divisible(
        name,
        tensor_plan=None if layers is None else TensorPlan(**layers),
        context_plan=None if attention is None else ContextPlan(**attention),
        experts=described["experts"],
        own=True,
    )


def check_same_machine(launcher: Launcher, stored: StoredRun) -> dict[str, Any]:
    """Return the fingerprint of the machine on which a run goes on.

    Raises:
        EnvironmentUnfit: It is not the one that the run was begun on.
    """
    here = machine.fingerprint(launcher.survey(), launcher.world)
    different = machine.differences(here, stored.info.environment)
    if different:
        raise EnvironmentUnfit(
            f"{stored.paths.root} was started with a different {', '.join(different)}; its cells "
            "would not be comparable. Start a new run here."
        )
    return here
