"""Which framework trained a row, and what it says was in force."""

from pydantic import ValidationError

from scalebench.analysis.rows.context import Context
from scalebench.analysis.rows.fields import NO_LAUNCH, Fields, null
from scalebench.analysis.rows.launches import Launches
from scalebench.records.rows.frameworks import FrameworkFacts
from scalebench.spec import FromFramework

UNTESTED = "version not tested"


def framework_of_row(row: Launches, _: Context) -> Fields:
    """Return the framework's facts, and the mark of a version that is not tested."""
    if not isinstance(row.cell.strategy, FromFramework):
        return null(["framework"], "no other framework trains it")
    ranks = [rank for result in row.good.values() for rank in result.ranks]
    if not ranks:
        return null(["framework"], NO_LAUNCH)
    try:
        found = FrameworkFacts.model_validate(ranks[0].facts.get("framework"))
    except ValidationError:  # of a version that knows others
        return null(["framework"], "the launch did not record it")
    told = ", ".join(_untested(found, name) for name in found.untested)
    return {"framework": found, "stamps": [f"{UNTESTED}: {told}"] if told else []}


def _untested(found: FrameworkFacts, name: str) -> str:
    """Write the version that was found, and the one that is tested where the launch says it."""
    tested = found.tested.get(name)
    return f"{name} {found.versions.get(name)}" + (f" (tested: {tested})" if tested else "")
