"""Which framework trained a row, and what it says was in force."""

from pydantic import ValidationError

from scalebench.analysis.rows.fields import RowFields
from scalebench.analysis.rows.launches import Launches
from scalebench.records.rows.frameworks import FrameworkFacts
from scalebench.spec import FromFramework

UNTESTED = "version not tested"


def framework_of_row(row: Launches) -> RowFields:
    """Return the framework's facts, and the mark of a version that is not tested."""
    fields = RowFields()
    if not isinstance(row.cell.strategy, FromFramework):
        fields.set("framework", None, "no other framework trains it")
        return fields
    ranks = [rank for result in row.good.values() for rank in result.ranks]
    if not ranks:
        fields.set("framework", None, "no launch of this row succeeded")
        return fields
    try:
        found = FrameworkFacts.model_validate(ranks[0].facts.get("framework"))
    except ValidationError:  # of a version that knows others
        fields.set("framework", None, "the launch did not record it")
        return fields
    fields.set("framework", found, "")
    if found.untested:
        told = ", ".join(_untested(found, name) for name in found.untested)
        fields.stamps.append(f"{UNTESTED}: {told}")
    return fields


def _untested(found: FrameworkFacts, name: str) -> str:
    """Write the version that was found, and the one that is tested where the launch says it."""
    tested = found.tested.get(name)
    return f"{name} {found.versions.get(name)}" + (f" (tested: {tested})" if tested else "")
