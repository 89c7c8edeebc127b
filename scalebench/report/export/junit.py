"""JUnit XML: a test suite for each suite, a test case for each row, one for timed collectives.

A row that failed or ran out of memory is a failure with its reason, a skipped one is skipped with
its reason. What was measured, what was not and why stands in ``system-out``, where Jenkins, GitLab
and others show it. ``time`` is the wall clock of the row's launches, what the row cost, and no
measurement of training; rows that took turns in a launch share it. A suite's is that of all its
launches, those that belong to no row too. Elements and attributes are those of Jenkins' schema,
``junit-10.xsd``.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from xml.etree import ElementTree

from scalebench.analysis.run import StoredRun
from scalebench.grouping import by_key
from scalebench.records.summary import Row, Summary, TimedCollectives
from scalebench.report.export.measures import caveats, numbers, row_name
from scalebench.report.words.terms import plain

ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 has no place for, not even escaped (section 2.2)."""

Outcome = Mapping[str, Mapping[str, object]]
"""``failure``, ``error`` or ``skipped`` → its attributes; empty: a test case has passed."""


def export_junit(run: StoredRun, summary: Summary) -> str:
    """Return every row as a test case."""
    root = ElementTree.Element("testsuites", {"name": legal(summary.run_id)})
    suites = by_key((row.suite, row) for row in summary.rows)
    for name, rows in suites.items():
        root.append(_suite(name, rows, run, summary))
    if summary.collectives is not None:
        root.extend(_collectives(name, summary.collectives) for name in summary.collectives.suites)
    return written(root)


def written(root: ElementTree.Element) -> str:
    """Return test suites as a file, their counts summed in the root."""
    for count in ("tests", "failures", "errors"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    ElementTree.indent(root)
    head = '<?xml version="1.0" encoding="UTF-8"?>\n'
    return head + ElementTree.tostring(root, encoding="unicode") + "\n"


def suite_of(name: str, cases: Sequence[ElementTree.Element], **about: str) -> ElementTree.Element:
    """Return a test suite with its cases counted; ``about``: further attributes."""
    counts = {
        attribute: str(sum(case.find(tag) is not None for case in cases))
        for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))
    }
    suite = ElementTree.Element(
        "testsuite", {"name": legal(name), "tests": str(len(cases)), **counts, **about}
    )
    suite.extend(cases)
    return suite


def case_of(
    suite: str, name: str, lines: Iterable[str], outcome: Outcome, **about: str
) -> ElementTree.Element:
    """Return a test case with lines of output; ``about``: further attributes."""
    case = ElementTree.Element(
        "testcase", {"classname": legal(suite), "name": legal(name), **about}
    )
    for kind, told in outcome.items():
        ElementTree.SubElement(case, kind, {key: legal(text) for key, text in told.items()})
    ElementTree.SubElement(case, "system-out").text = "\n".join(map(legal, lines))
    return case


def _suite(name: str, rows: Sequence[Row], run: StoredRun, summary: Summary) -> ElementTree.Element:
    total_s = sum(r.cost_s for r in run.results.values() if r.cell.suite == name)
    suite = suite_of(
        name,
        [_case(row, _cost_s(row, run)) for row in rows],
        time=f"{total_s:.3f}",
        timestamp=legal(summary.created),
        hostname=legal(summary.environment.get("host") or "unknown"),
    )
    suite.insert(0, _properties(summary))
    return suite


def _collectives(name: str, found: TimedCollectives) -> ElementTree.Element:
    """Return a suite of collectives: one test case, whether every result was what it should be."""
    lines = [f"points: {found.num_points}", f"wrong elements: {found.num_wrong}"]
    for fit in found.fits:
        lines.append(", ".join(f"{field}: {value}" for field, value in fit.items()))
    failed = {"failure": {"message": found.failure, "type": "failed"}}
    outcome = {} if found.failure is None else failed
    return suite_of(name, [case_of(name, "collectives", lines, outcome)])


def _properties(summary: Summary) -> ElementTree.Element:
    told = {
        "run_id": summary.run_id,
        "status": summary.status,
        "scalebench": summary.scalebench_version,
        "reproduce": summary.reproduce,
        **{
            f"environment.{name}": value
            for name, value in summary.environment.items()
            if isinstance(value, str | int | float)
        },
        **{f"notice.{i}": notice for i, notice in enumerate(summary.notices)},
    }
    properties = ElementTree.Element("properties")
    for name, value in told.items():
        ElementTree.SubElement(properties, "property", {"name": legal(name), "value": legal(value)})
    return properties


def _case(row: Row, time_s: float) -> ElementTree.Element:
    reason = row.reason or "no reason recorded"
    failed = {"failure": {"message": f"{row.status}: {reason}", "type": row.status}}
    outcome = {"ok": {}, "skipped": {"skipped": {"message": reason}}}.get(row.status, failed)
    name = row_name(row).partition("/")[2]
    case = case_of(row.suite, name, _lines(row), outcome, time=f"{time_s:.3f}")
    for failure in case.iter("failure"):
        failure.text = legal(reason)
    return case


def _lines(row: Row) -> list[str]:
    lines = [f"caveat: {caveat}" for caveat in caveats(row)]
    for measure, number in numbers(row):
        interval = ""
        if number.low is not None and number.high is not None:
            interval = f" [{number.low:.6g}, {number.high:.6g}], {number.n} {measure.counts}"
        lines.append(f"{measure.field}: {number.value:.6g} {measure.unit}{interval}")
    lines += [f"stamp: {stamp}" for stamp in row.stamps]
    return lines + [f"{field}: null: {why}" for field, why in row.unavailable.items()]


def _cost_s(row: Row, run: StoredRun) -> float:
    key = (row.suite, row.case, row.world_size)
    return sum(
        result.cost_s
        for result in run.results.values()
        if result.cell.row_key == key and result.cell.purpose not in ("independent", "shard")
    )


def legal(text: object) -> str:
    """Return a text on one line, without what XML has no place for."""
    return ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", plain(text, 2000))
