"""Each framework's step beside the shortest one, over the rounds that both ran in.

What slows a whole round cancels in the ratio, so it parts rows whose step times overlap. With k
rows beside the fastest, each interval has a confidence of 1 - 0.05/k: then the row that really is
the fastest is called slower in at most 5 % of runs, though nobody knew beforehand which to compare
with. Source: Hsu 1981 (multiple comparisons with the best); Bonferroni for his critical value.
"""

from collections.abc import Sequence

from scalebench.analysis.rows.context import Context
from scalebench.analysis.rows.fields import Fields, null
from scalebench.records.baseline import key_of
from scalebench.records.rows.frameworks import AgainstFastest
from scalebench.records.summary import Row

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
    fastest = min(group, key=_step_s)
    pair = run.launches(row), run.launches(fastest)
    found = run.ratios.step_ratio(*pair, max(1, len(group) - 1))
    if found is None:
        return null([FIELD], NO_ROUND)
    return {FIELD: AgainstFastest(fastest=key_of(fastest), step_ratio=found)}


def _counts(row: Row) -> bool:
    wrong = row.correctness is not None and row.correctness.status == "deviates"
    return row.step_s is not None and row.strategy != "plain" and not wrong


def _kind(row: Row) -> tuple[str, int, str, int]:
    """What rows have in common that did the same work."""
    return row.suite, row.world_size, row.workload, row.global_batch


def _step_s(row: Row) -> float:
    return row.step_s.value if row.step_s is not None else 0.0
