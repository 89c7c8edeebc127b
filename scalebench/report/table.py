"""The terminal's tables: in brief what an engineer needs in ten seconds, or all there is."""

from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from scalebench.costmodel.links.profile import LinkProfile
from scalebench.grouping import by_key
from scalebench.records.summary import Row, Summary, TimedCollectives
from scalebench.report import certificate
from scalebench.report.findings.findings import Finding, SuiteVerdict, judge, next_steps
from scalebench.report.findings.notes import disturbance
from scalebench.report.tables import frameworks, races
from scalebench.report.tables.axes import EXPERTS
from scalebench.report.tables.budget import AXIS_BUDGET, POP, missing, show_budgets
from scalebench.report.tables.columns import lettered, present
from scalebench.report.tables.communication import AXES, wire_findings_of
from scalebench.report.tables.compression import COMPRESSION
from scalebench.report.tables.layout import (
    CASE_WIDTHS,
    FOLDED,
    GAP,
    Screen,
    Table,
    line,
    names,
    show,
    to_ascii,
    without,
)
from scalebench.report.tables.predictions import PREDICTIONS, show_fits
from scalebench.report.tables.races import RACES
from scalebench.report.tables.recovery import ELASTIC, FAILURES, LOST, RESTORES, SAVES
from scalebench.report.words import script_checks, wording
from scalebench.report.words.notes import above_ideal, explain, marks, precision_note, said

LEAST = ("tokens/s", "loss", "J/sample", "batch all/rank", "samples/s", "peak mem", "MFU")
"""The columns that go at narrow widths, in this order."""

RECOVERY: tuple[Table[Any], ...] = (SAVES, RESTORES, FAILURES, ELASTIC, LOST)

NARROWING = (*without(*LEAST[:2]), lettered, *without(*LEAST[2:]), *FOLDED)

EQUAL_STEPS = "loss: of the first step, and after @ steps, the same for all rows of one batch"

SAME_METHOD = "verified of a compressed row: it equals the same method, emulated in one process"

LONGEST_REASON = 400


def render_table(summary: Summary, screen: Screen, verbose: bool = False) -> str:
    """Return tables and verdict as text for a terminal.

    Args:
        summary: The run.
        screen: An empty one; less important table columns give way below a width of 140.
        verbose: Also budgets, compression and predictions, every case in sentences, and what the
            instrument is worth.
    """
    screen.lines(map(wording.plain, summary.notices), "yellow")
    if summary.status != "complete":
        screen.line(f"This run is not complete: {wording.plain(summary.status, 40)}.", "yellow")
    if disturbed := disturbance(summary):
        screen.line(disturbed, "bold yellow")
    for suite, rows in wording.by_suite(summary.rows).items():
        _show_suite(suite, rows, screen)
        if verbose:
            _show_details(rows, screen)
    if wide := precision_note(summary):
        screen.line(wide, "dim")
    if summary.collectives is not None:
        _show_collectives(summary.collectives, summary.link, screen)
    if verbose:
        _show_verdict(summary, screen)
        show_first_steps(summary, screen)
    else:
        show_brief(summary, screen)
    if not summary.rows and summary.collectives is None:
        screen.line("Nothing was planned; there is nothing to show.")
    if summary.certificate is not None and (verbose or summary.certificate.failed):
        screen.line(certificate.reference(summary.certificate), "dim")
    return screen.text()


def render_pop(summary: Summary, screen: Screen) -> str:
    """Return POP's efficiencies of every suite, or why there are none."""
    for suite, rows in wording.by_suite(summary.rows).items():
        screen.line().line(wording.plain(suite, 64), "bold")
        show(POP, rows, screen)
        if not POP.lines(rows):
            why = missing(rows) or ["no row of several ranks was measured"]
            screen.lines(f"no POP efficiencies: {one}" for one in why)
    return screen.text()


def _show_collectives(found: TimedCollectives, link: LinkProfile | None, screen: Screen) -> None:
    screen.line()
    screen.lines((wording.plain(name, 64) for name in found.suites), "bold")
    if link is not None:
        num_ops = len({point.op for point in link.points})
        screen.line(
            f"{num_ops} operations at {found.num_points} points, every result verified: "
            f"{found.num_wrong} wrong elements · {link.device} over {link.backend}",
            "dim",
        )
        show_fits(link, screen)
    if found.failure is not None:
        screen.line(f"failed: {wording.plain(found.failure)}", "bold red")


def _show_verdict(summary: Summary, screen: Screen) -> None:
    for suite in judge(summary).suites:
        told = [finding for finding in suite.findings if finding.kind != "baseline"]
        if told or suite.ranking:
            screen.line()
            screen.line(f"verdict on suite {wording.plain(suite.suite, 64)}", "bold")
            screen.lines([suite.ranking] if suite.ranking else [])
        for finding in told:
            screen.line(f"{wording.plain(finding.case, 64)}: {finding.verdict}", indent=2)


def _show_suite(suite: str, rows: list[Row], screen: Screen) -> None:
    columns = present(rows)
    screen.line()
    screen.line(wording.plain(suite, 64), "bold")
    screen.line(wording.suite_facts(rows), "dim")
    shown = screen.table(columns, rows, NARROWING)
    _show_reasons(rows, screen)
    told = dict.fromkeys(name for row in rows for name in marks(row))
    in_full = any(c.name == "marks" and c in columns for c in shown)
    names_of = {name: name if in_full else explain(name).letter for name in told}
    is_ = " = " if in_full else " "
    legend = [f"{mark}{is_}{said(name)}" for name, mark in names_of.items() if mark != said(name)]
    dropped = [name for name in LEAST if name in names(columns) and name not in names(shown)]
    notes = (
        *([f"marks: {', '.join(legend)}"] if legend else []),
        *([EQUAL_STEPS] if "loss" in names(shown) else []),
        *([SAME_METHOD] if any(map(_is_emulated, rows)) else []),
        *above_ideal(rows),
        *script_checks.kinds_sentences(rows),
        *script_checks.gaps_sentences(rows),
        *script_checks.remarks_in_brief(rows),
        *([f"not shown at this width: {', '.join(dropped)}"] if dropped else []),
    )
    screen.lines(notes, "dim")
    show(RACES, rows, screen)
    if any(not figures.traced for _, figures in races.looked_at(rows)):
        show(races.LOCKSTEP, rows, screen)
        show(races.WEIGHTS, rows, screen)
    for one in RECOVERY:
        show(one, rows, screen)
    if said_of := frameworks.sentence(rows):
        screen.line()
        screen.line(said_of, "bold")


def _is_emulated(row: Row) -> bool:
    right = row.correctness is not None and row.correctness.status == "verified"
    return right and row.compression is not None and row.world_size > 1


def _show_details(rows: list[Row], screen: Screen) -> None:
    show_budgets(rows, screen)
    show(AXES, rows, screen)
    show(AXIS_BUDGET, rows, screen)
    screen.lines(wire_findings_of(rows))
    show(EXPERTS, rows, screen)
    show(COMPRESSION, rows, screen)
    show(PREDICTIONS, rows, screen)
    screen.lines(script_checks.remarks_in_full(rows))


def _show_reasons(rows: Sequence[Row], screen: Screen) -> None:
    """Show why rows were not measured: a line for each reason, with all that it holds for."""
    missing = by_key(
        ((row.status, row.reason or "no reason recorded"), row)
        for row in rows
        if row.status != "ok"
    )
    if missing:
        screen.line("not measured", "bold")
    for (status, reason), alike in missing.items():
        why = wording.plain(reason, LONGEST_REASON)
        screen.line(f"{_which(alike)}, {status}: {why}", indent=2)


def _which(rows: Sequence[Row]) -> str:
    """Name rows: their cases, together where they are of the same numbers of ranks."""
    sizes = by_key((wording.plain(row.case, 64), str(row.world_size)) for row in rows)
    cases = by_key((wording.joined(at), case) for case, at in sizes.items())
    return "; ".join(f"{', '.join(names)}, N={at}" for at, names in cases.items())


ARROW = "→ "

FIRST = "try first: what could win most seconds of a step"

MEANINGS = {
    "idle": "idle: nothing runs, and no other rank is waited for",
    "waiting": "waiting: for a rank that comes later",
}
"""Of parts of the loss that are taken for each other."""

WIDE, NARROW = 80, 60
"""Terminals of fewer columns fold case names at the next of `CASE_WIDTHS`."""


def show_brief(summary: Summary, screen: Screen) -> None:
    """Show the verdicts of a run's suites, and of several what to try first."""
    for suite in judge(summary).suites:
        if not suite.cases and not suite.is_race:
            continue
        screen.line()
        screen.line(suite.title, "bold")
        screen.line(suite.headline)
        if suite.cases:
            screen.add(_cases(suite, screen))
        screen.add(*_next_step(suite.next_step, "All cases: ", screen))
        named = " ".join(text for case in suite.cases for text in case.losses)
        screen.lines([told for word, told in MEANINGS.items() if word in named], "dim")
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
        screen.add(*_next_step(told, "", screen))


def _cases(suite: SuiteVerdict, screen: Screen) -> RichTable:
    fold = CASE_WIDTHS[(screen.width < WIDE) + (screen.width < NARROW)]
    names = min(fold, max(cell_len(case.name) for case in suite.cases))
    grid = RichTable.grid(padding=(0, GAP, 0, 0), pad_edge=False)
    grid.add_column(width=names, overflow="fold")
    grid.add_column()
    for case in suite.cases:
        room = screen.width - names - GAP
        grid.add_row(line(case.name, screen.ascii_only), _case(case, suite, room, screen))
    return grid


def _case(case: Finding, suite: SuiteVerdict, room: int, screen: Screen) -> RenderableType:
    first = _result(case, suite)
    left = room - cell_len(first) - GAP
    fitting = [text for text in case.losses if cell_len(text) <= left] or case.losses[-1:]
    for text in fitting[:1]:
        first = f"{first}{' ' * GAP}{text}"
    step = None if suite.next_step else case.next_step
    return Group(line(first, screen.ascii_only), *_next_step(step, "", screen))


def _next_step(step: str | None, of: str, screen: Screen) -> list[RenderableType]:
    if step is None:
        return []
    arrow = to_ascii(ARROW) if screen.ascii_only else ARROW
    grid = RichTable.grid()
    grid.add_column(width=cell_len(arrow))
    grid.add_column()
    grid.add_row(Text(arrow, style="green"), line(f"{of}{step}", screen.ascii_only))
    return [grid]


def _result(case: Finding, suite: SuiteVerdict) -> str:
    """Write speedup and result, below those of the other cases."""
    texts = [(speedup, one.result) for one in suite.cases if (speedup := suite.speedup(one))]
    speedup = suite.speedup(case)
    if not speedup:
        return case.result
    first, second = (max(map(cell_len, column)) for column in zip(*texts, strict=True))
    return f"{speedup.rjust(first)}{' ' * GAP}{case.result.rjust(second)}"
