"""The verdict in brief on a terminal: a headline per suite, two lines per case.

The first line of a case has its result and its biggest cause, the second the next step.
"""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scalebench.records.summary import Summary
from scalebench.report.findings.brief import CaseInBrief, SuiteInBrief, judge_in_brief
from scalebench.report.findings.findings import judge
from scalebench.report.findings.next_steps import next_steps
from scalebench.report.tables.layout import CASE_WIDTHS, GAP, Screen, line, to_ascii
from scalebench.report.words import wording

ARROW = "→ "

FIRST = "try first: what could win most seconds of a step"

WIDE, NARROW = 80, 60
"""Terminals of fewer columns fold case names at the next of `CASE_WIDTHS`."""


def show_brief(summary: Summary, screen: Screen) -> None:
    """Show the verdicts of a run's suites, and of several what to try first."""
    for suite in judge_in_brief(summary):
        screen.line()
        screen.line(suite.title, "bold")
        screen.line(suite.headline)
        if suite.cases:
            screen.add(_cases(suite, screen))
        screen.add(*_next_step(suite.next_step, "All cases: ", screen.ascii_only))
    show_first_steps(summary, screen)


def show_first_steps(summary: Summary, screen: Screen) -> None:
    """Show what could win most over all suites; nothing for a run of one suite."""
    groups = wording.by_suite(summary.rows)
    found = next_steps(judge(summary).suites, groups) if len(groups) > 1 else ()
    if found:
        screen.line()
        screen.line(FIRST, "bold")
    for step in found:
        told = f"{step.action}: {step.gain} ({step.whence})"
        screen.add(*_next_step(told, "", screen.ascii_only))


def _cases(suite: SuiteInBrief, screen: Screen) -> Table:
    width, ascii_only = screen.width, screen.ascii_only
    fold = CASE_WIDTHS[(width < WIDE) + (width < NARROW)]
    names = min(fold, max(cell_len(case.case) for case in suite.cases))
    grid = Table.grid(padding=(0, GAP, 0, 0), pad_edge=False)
    grid.add_column(width=names, overflow="fold")
    grid.add_column()
    for case in suite.cases:
        name = line(case.case, ascii_only)
        grid.add_row(name, _case(case, suite.cases, width - names - GAP, ascii_only))
    return grid


def _case(
    case: CaseInBrief, cases: Sequence[CaseInBrief], width: int, ascii_only: bool
) -> RenderableType:
    first = _result(case, cases)
    room = width - cell_len(first) - GAP
    fitting = [text for text in case.losses if cell_len(text) <= room] or case.losses[-1:]
    for text in fitting[:1]:
        first = f"{first}{' ' * GAP}{text}"
    return Group(line(first, ascii_only), *_next_step(case.next_step, "", ascii_only))


def _next_step(told: str | None, of: str, ascii_only: bool) -> list[RenderableType]:
    if told is None:
        return []
    arrow = to_ascii(ARROW) if ascii_only else ARROW
    grid = Table.grid()
    grid.add_column(width=cell_len(arrow))
    grid.add_column()
    grid.add_row(Text(arrow, style="green"), line(f"{of}{told}", ascii_only))
    return [grid]


def _result(case: CaseInBrief, cases: Sequence[CaseInBrief]) -> str:
    rated = [other for other in cases if other.speedup]
    if case not in rated:
        return case.result
    widths = [max(map(cell_len, column)) for column in zip(*map(_texts, rated), strict=True)]
    return (" " * GAP).join(
        text.rjust(width) for text, width in zip(_texts(case), widths, strict=True)
    )


def _texts(case: CaseInBrief) -> tuple[str, str]:
    return case.speedup, case.result
