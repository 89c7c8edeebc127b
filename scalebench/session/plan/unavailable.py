"""Rows that this machine cannot run: no framework, or no ``torch.compile`` that works."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

from scalebench.errors import EnvironmentUnfit
from scalebench.session.plan.make import make_plan
from scalebench.session.plan.request import Machine, Plan, Request
from scalebench.spec import Cell, Execution, FromFramework, Suite

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
