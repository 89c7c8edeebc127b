"""What the gate says as JUnit XML: a test case for each verdict, and one for all of them.

What decides and is slower, probably slower or missing is a failure; inconclusive and not
comparable are errors, since nothing was shown. What is shown only is skipped.
The case ``gate / verdict`` is green exactly
where the exit code is 0, so that a result with no rows at all is red as well.
"""

from xml.etree import ElementTree

from scalebench.gate.result import GateResult, RowVerdict
from scalebench.grouping import by_key
from scalebench.report.export.junit import case_of, legal, suite_of, written
from scalebench.report.gate import table

_OF_ROW: dict[str, str] = {
    **dict.fromkeys(("regressed", "probably regressed", "missing"), "failure"),
    **dict.fromkeys(("inconclusive", "not comparable"), "error"),
}
_OF_ALL: dict[str, str] = {
    "regressed": "failure",
    "failed": "failure",
    "inconclusive": "error",
    "not comparable": "error",
}


def render_verdict_junit(result: GateResult) -> str:
    """Return every verdict as a test case."""
    root = ElementTree.Element("testsuites", {"name": legal(f"{result.base} → {result.new}")})
    suites = by_key((f"gate.{row.suite}", _case(row)) for row in result.rows)
    for name, cases in {**suites, "gate": [_overall(result)]}.items():
        root.append(suite_of(name, cases))
    return written(root)


def _case(row: RowVerdict) -> ElementTree.Element:
    name = f"{row.case} N={row.world_size} {row.metric}"
    told = f"{table.verdict_word(row)}: {row.reason}"
    outcome = _OF_ROW.get(row.verdict)
    if not row.decides:
        outcome, told = "skipped", f"shown only: {told}"
    values = [table.value_text(row, found) for found in (row.base, row.new)]
    numbers = (
        f"{table.metric_phrase(row.metric)}: {' → '.join(values)}",
        f"change: {table.change_text(row)} {table.interval_text(row)}",
        f"smallest findable: {table.detectable_text(row)}",
        f"launches: {row.base_launches} → {row.new_launches}",
    )
    told_by = {outcome: {"message": told, "type": row.verdict}} if outcome else {}
    return case_of(row.suite, name, [*numbers, *row.explanation], told_by)


def _overall(result: GateResult) -> ElementTree.Element:
    lines = [*result.notes, *table.mismatch_texts(result)]
    outcome = _OF_ALL.get(result.verdict) if result.exit_code else None
    told = {"message": table.headline(result), "type": result.verdict}
    return case_of("gate", "verdict", lines, {outcome: told} if outcome else {})
