"""Each framework's step beside the shortest one, over the rounds that both ran in.

What slows a whole round cancels in the ratio, so it parts rows whose step times overlap. With k
rows beside the fastest, each interval has a confidence of 1 - 0.05/k: then the row that really is
the fastest is called slower in at most 5 % of runs, though nobody knew beforehand which to compare
with. Source: Hsu 1981 (multiple comparisons with the best); Bonferroni for his critical value.
"""

from collections.abc import Mapping, Sequence

from scalebench.analysis.rows.efficiency import Ratios
from scalebench.records.baseline import key_of
from scalebench.records.rows.frameworks import AgainstFastest
from scalebench.records.summary import Row

FIELD = "against_fastest"
NO_FRAMEWORK = "no other framework was measured at this N"
NOT_COMPARED = "the plain model, or a row with wrong results or without a step time"
NO_ROUND = "no round in which both this row and the fastest succeeded"

Kind = tuple[str, int, str, int]
"""Suite, N, workload, global batch: rows of one kind did the same work."""


def with_fastest(rows: Sequence[Row], ratios: Ratios) -> list[Row]:
    """Return the rows; those of a suite with other frameworks are compared with the fastest."""
    compared: dict[Kind, list[Row]] = {}
    for row in rows:
        if _counts(row):
            compared.setdefault(_kind(row), []).append(row)
    groups = {
        kind: sorted(group, key=_step_s)
        for kind, group in compared.items()
        if any(row.framework is not None for row in group)
    }
    return [_with_fastest(row, groups, ratios) for row in rows]


def _with_fastest(row: Row, groups: Mapping[Kind, Sequence[Row]], ratios: Ratios) -> Row:
    group = groups.get(_kind(row))
    if group is None:
        return _without(row, NO_FRAMEWORK)
    if not _counts(row):
        return _without(row, NOT_COMPARED)
    fastest = key_of(group[0])
    launches = ratios.table[row.suite, row.case, row.world_size]
    found = ratios.step_ratio(launches, ratios.table[fastest], max(1, len(group) - 1))
    if found is None:
        return _without(row, NO_ROUND)
    return row.model_copy(update={FIELD: AgainstFastest(fastest=fastest, step_ratio=found)})


def _without(row: Row, why: str) -> Row:
    return row.model_copy(update={"unavailable": {**row.unavailable, FIELD: why}})


def _counts(row: Row) -> bool:
    wrong = row.correctness is not None and row.correctness.status == "deviates"
    return row.step_s is not None and row.strategy != "plain" and not wrong


def _kind(row: Row) -> Kind:
    return row.suite, row.world_size, row.workload, row.global_batch


def _step_s(row: Row) -> float:
    return row.step_s.value if row.step_s is not None else 0.0
