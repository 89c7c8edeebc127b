"""Which framework trained a row, and what it says was in force."""

from collections.abc import Sequence

from pydantic import ValidationError

from scalebench.analysis.rows.fields import NO_LAUNCH, Context, Fields, null
from scalebench.analysis.rows.launches import Launches
from scalebench.records.baseline import key_of
from scalebench.records.rows.strategies import AgainstFastest, FrameworkFacts
from scalebench.records.summary import Row
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


FIELD = "against_fastest"
NO_FRAMEWORK = "no other framework was measured at this N"
NOT_COMPARED = "the plain model, or a row with wrong results or without a step time"
NO_ROUND = "no round in which both this row and the fastest succeeded"


def against_fastest(row: Row, rows: Sequence[Row], run: Context) -> Fields:
    """Compare a row with the fastest that did the same work, in a suite with other frameworks."""
    group = [other for other in rows if _counts(other) and _kind(other) == _kind(row)]
    if all(other.framework is None for other in group):
        return null([FIELD], NO_FRAMEWORK)
    if not _counts(row):
        return null([FIELD], NOT_COMPARED)
    fastest = min(group, key=lambda row: row.step_s.value if row.step_s is not None else 0.0)
    pair = run.launches(row), run.launches(fastest)
    found = run.ratios.step_ratio(*pair, max(1, len(group) - 1))
    if found is None:
        return null([FIELD], NO_ROUND)
    return {FIELD: AgainstFastest(fastest=key_of(fastest), step_ratio=found)}


def _counts(row: Row) -> bool:
    return row.step_s is not None and row.strategy != "plain" and not row.deviates


def _kind(row: Row) -> tuple[str, int, str, int]:
    """What rows have in common that did the same work."""
    return row.suite, row.world_size, row.workload, row.global_batch
