"""Rows that were to be compiled on a machine where ``torch.compile`` does not work."""

from collections.abc import Sequence
from dataclasses import replace

from scalebench.errors import EnvironmentUnfit
from scalebench.session.plan.make import make_plan
from scalebench.session.plan.request import Machine, Plan, Request
from scalebench.spec import Cell, Suite


def compiles(plan: Plan) -> bool:
    """Tell whether a row of a plan is compiled."""
    return any(cell.skip_reason is None and _is_compiled(cell) for cell in plan.cells)


def without_compiling(
    request: Request, suites: Sequence[Suite], machine: Machine, problem: str
) -> Plan:
    """Return the plan with rows that run eagerly, as it says; a case that asks to is skipped.

    Args:
        request: Of the plan.
        suites: Likewise.
        machine: Likewise.
        problem: Why compiling does not work, and the remedy.

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
