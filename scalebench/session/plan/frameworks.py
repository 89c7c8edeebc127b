"""Which frameworks are installed, and the cells that cannot run for want of one."""

from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version

from scalebench.spec import Cell, Execution, FromFramework

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


def without_missing_frameworks(
    cells: Sequence[Cell], installed: Installed = installed_version
) -> list[Cell]:
    """Return the cells of a plan, skipped where their framework is not installed."""
    return [
        cell
        if cell.skip_reason is not None or (why := why_missing(cell.strategy, installed)) is None
        else cell.model_copy(update={"skip_reason": why})
        for cell in cells
    ]
