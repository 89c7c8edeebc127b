"""The terminal's tables: in brief what an engineer needs in ten seconds, or all there is."""

from collections.abc import Sequence
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from scalebench.costmodel.links.profile import LinkProfile
from scalebench.records.summary import Row, Summary, TimedCollectives
from scalebench.report.findings.disturbance import disturbance
from scalebench.report.findings.findings import judge
from scalebench.report.tables import certificate, frameworks, lockstep
from scalebench.report.tables.axis_budget import AXIS_BUDGET
from scalebench.report.tables.brief_verdict import brief_parts, first_step_parts
from scalebench.report.tables.budget_table import budget_parts
from scalebench.report.tables.calibration import fit_parts
from scalebench.report.tables.columns import lettered, present
from scalebench.report.tables.communication import AXES
from scalebench.report.tables.compression import COMPRESSION
from scalebench.report.tables.experts import EXPERTS
from scalebench.report.tables.layout import (
    FOLDED,
    NARROWEST,
    fit,
    line,
    names,
    printed,
    table,
    without,
)
from scalebench.report.tables.listing import Table, shown
from scalebench.report.tables.lockstep import LOCKSTEP
from scalebench.report.tables.predictions import PREDICTIONS
from scalebench.report.tables.races import RACES
from scalebench.report.tables.recovery import ELASTIC, FAILURES, LOST, RESTORES, SAVES
from scalebench.report.tables.wires import findings_of
from scalebench.report.words import outside, script_remarks, step_kinds, wording
from scalebench.report.words.notes import above_ideal, precision_note
from scalebench.report.words.warnings import explain, marks, said

LEAST = ("tokens/s", "loss", "J/sample", "batch all/rank", "samples/s", "peak mem", "MFU")
"""The columns that go at narrow widths, in this order."""

RECOVERY: tuple[Table[Any], ...] = (SAVES, RESTORES, FAILURES, ELASTIC, LOST)

NARROWING = (*without(*LEAST[:2]), lettered, *without(*LEAST[2:]), *FOLDED)

EQUAL_STEPS = "loss: of the first step, and after @ steps, the same for all rows of one batch"

LONGEST_REASON = 400


def render_table(
    summary: Summary,
    width: int = 100,
    color: bool = False,
    ascii_only: bool = False,
    verbose: bool = False,
) -> str:
    """Return tables and verdict as text for a terminal.

    Args:
        summary: The run.
        width: Columns of the terminal; less important table columns give way below 140.
        color: Whether ANSI styles are written.
        ascii_only: Write nothing but ASCII, for terminals that are not UTF-8.
        verbose: Also budgets, compression and predictions, every case in sentences, and what the
            instrument is worth.
    """
    width = max(width, NARROWEST)
    return printed(_parts(summary, width, ascii_only, verbose), width, color, ascii_only)


def _parts(summary: Summary, width: int, ascii_only: bool, verbose: bool) -> list[RenderableType]:
    parts: list[RenderableType] = [
        line(wording.plain(notice), ascii_only, "yellow") for notice in summary.notices
    ]
    if summary.status != "complete":
        status = f"This run is not complete: {wording.plain(summary.status, 40)}."
        parts.append(line(status, ascii_only, "yellow"))
    disturbed = disturbance(summary)
    parts += [line(disturbed, ascii_only, "bold yellow")] if disturbed else []
    for suite, rows in wording.by_suite(summary.rows).items():
        parts += _suite(suite, rows, width, ascii_only)
        untraced = any(not figures.traced for _, figures in lockstep.looked_at(rows))
        declared: list[Table[Any]] = [RACES, *([LOCKSTEP] if untraced else []), *RECOVERY]
        for one in declared:
            parts += shown(one, rows, width, ascii_only)
        said_of = frameworks.sentence(rows)
        parts += [Text(""), line(said_of, ascii_only, "bold")] if said_of else []
        parts += _details(rows, width, ascii_only) if verbose else []
    wide = precision_note(summary)
    parts += [line(wide, ascii_only, "dim")] if wide else []
    if summary.collectives is not None:
        parts += _collectives(summary.collectives, summary.link, ascii_only)
    if verbose:
        parts += [*_verdict(summary, ascii_only), *first_step_parts(summary, ascii_only)]
    else:
        parts += brief_parts(summary, width, ascii_only)
    if not summary.rows and summary.collectives is None:
        parts.append(line("Nothing was planned; there is nothing to show.", ascii_only))
    if summary.certificate is not None and (verbose or summary.certificate.failed):
        parts.append(line(certificate.reference(summary.certificate), ascii_only, "dim"))
    return parts


def _collectives(
    found: TimedCollectives, link: LinkProfile | None, ascii_only: bool
) -> list[RenderableType]:
    parts: list[RenderableType] = [Text("")]
    parts += [line(wording.plain(name, 64), ascii_only, "bold") for name in found.suites]
    if link is not None:
        num_ops = len({point.op for point in link.points})
        told = (
            f"{num_ops} operations at {found.num_points} points, every result verified: "
            f"{found.num_wrong} wrong elements · {link.device} over {link.backend}"
        )
        parts += [line(told, ascii_only, "dim"), *fit_parts(link, ascii_only)]
    if found.failure is not None:
        parts.append(line(f"failed: {wording.plain(found.failure)}", ascii_only, "bold red"))
    return parts


def _verdict(summary: Summary, ascii_only: bool) -> list[RenderableType]:
    """Return what the run says of every case beside the baseline, in a few sentences each."""
    parts: list[RenderableType] = []
    for suite in judge(summary).suites:
        told = [finding for finding in suite.findings if finding.kind != "baseline"]
        if told or suite.ranking:
            name = wording.plain(suite.suite, 64)
            parts += [Text(""), line(f"verdict on suite {name}", ascii_only, "bold")]
            parts += [line(suite.ranking, ascii_only)] if suite.ranking else []
        for finding in told:
            text = line(f"{wording.plain(finding.case, 64)}: {finding.verdict}", ascii_only)
            parts.append(Padding(text, (0, 0, 0, 2)))
    return parts


def _suite(suite: str, rows: list[Row], width: int, ascii_only: bool) -> list[RenderableType]:
    columns = present(rows)
    shown = fit(columns, rows, width, ascii_only, NARROWING)
    parts: list[RenderableType] = [
        Text(""),
        line(wording.plain(suite, 64), ascii_only, "bold"),
        line(wording.suite_facts(rows), ascii_only, "dim"),
        table(shown, rows, ascii_only),
        *_reasons(rows, ascii_only),
    ]
    told = dict.fromkeys(name for row in rows for name in marks(row))
    in_full = any(c.name == "marks" and c in columns for c in shown)
    names_of = {name: name if in_full else explain(name).letter for name in told}
    is_ = " = " if in_full else " "
    legend = [f"{mark}{is_}{said(name)}" for name, mark in names_of.items() if mark != said(name)]
    if legend:
        parts.append(line(f"marks: {', '.join(legend)}", ascii_only, "dim"))
    parts += [line(EQUAL_STEPS, ascii_only, "dim")] if "loss" in names(shown) else []
    parts += [line(text, ascii_only, "dim") for text in above_ideal(rows)]
    parts += [line(text, ascii_only, "dim") for text in step_kinds.sentences(rows)]
    parts += [line(text, ascii_only, "dim") for text in outside.sentences(rows)]
    parts += [line(text, ascii_only, "dim") for text in script_remarks.brief(rows)]
    dropped = [name for name in LEAST if name in names(columns) and name not in names(shown)]
    if dropped:
        left_out = f"not shown at this width: {', '.join(dropped)}"
        parts.append(line(left_out, ascii_only, "dim"))
    return parts


def _details(rows: list[Row], width: int, ascii_only: bool) -> list[RenderableType]:
    def of(*declared: Table[Any]) -> list[RenderableType]:
        return [part for one in declared for part in shown(one, rows, width, ascii_only)]

    return [
        *budget_parts(rows, width, ascii_only),
        *of(AXES, AXIS_BUDGET),
        *(line(text, ascii_only) for text in findings_of(rows)),
        *of(EXPERTS, COMPRESSION, PREDICTIONS),
        *(line(text, ascii_only) for text in script_remarks.in_full(rows)),
    ]


def _reasons(rows: Sequence[Row], ascii_only: bool) -> list[RenderableType]:
    """Return why rows were not measured: a line for each reason, with all that it holds for."""
    missing: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.status != "ok":
            missing.setdefault((row.status, row.reason or "no reason recorded"), []).append(row)
    if not missing:
        return []
    parts: list[RenderableType] = [line("not measured", ascii_only, "bold")]
    for (status, reason), alike in missing.items():
        why = wording.plain(reason, LONGEST_REASON)
        told = line(f"{_which(alike)}, {status}: {why}", ascii_only)
        parts.append(Padding(told, (0, 0, 0, 2)))
    return parts


def _which(rows: Sequence[Row]) -> str:
    """Name rows: their cases, together where they are of the same numbers of ranks."""
    sizes: dict[str, list[str]] = {}
    for row in rows:
        sizes.setdefault(wording.plain(row.case, 64), []).append(str(row.world_size))
    cases: dict[str, list[str]] = {}
    for case, at in sizes.items():
        cases.setdefault(wording.joined(at), []).append(case)
    return "; ".join(f"{', '.join(names)}, N={at}" for at, names in cases.items())
