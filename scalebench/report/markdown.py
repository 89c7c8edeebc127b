"""summary.md: the verdict and the table, for a comment on a pull request."""

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from scalebench.records.summary import Row, Summary
from scalebench.report.findings.findings import Finding, SuiteVerdict, judge, next_steps
from scalebench.report.tables import budget, frameworks, races, recovery
from scalebench.report.tables.columns import present
from scalebench.report.tables.layout import Column, Table, cells, names, said_of
from scalebench.report.tables.predictions import PREDICTIONS
from scalebench.report.tables.races import RACES
from scalebench.report.tables.recovery import ELASTIC, FAILURES, LOST, RESTORES, SAVES
from scalebench.report.words import wording
from scalebench.report.words.causes import budgeted
from scalebench.report.words.notes import above_ideal
from scalebench.report.words.wording import capital

S = TypeVar("S")

MAX_BYTES = 60_000
_RESERVED = 400
_SPECIAL = re.compile(r"([\\`*_\[\]|~#])")
_MENTION = re.compile(r"@(?=\w)")
_LINK = re.compile(r"(?i)\b(https?|ftp)://|\bwww\.")


def render_markdown(summary: Summary) -> str:
    """Return the verdict and the tables as GitHub Markdown, always below 60 kB.

    What does not fit is left out from the end, and the last line says so.
    """
    blocks = [f"### scalebench: {escape(summary.run_id, 120)}"]
    blocks += [f"> {escape(notice, 300)}" for notice in summary.notices[:20]]
    verdict = judge(summary)
    blocks += [escape(sentence, 400) for sentence in verdict.general]
    groups = wording.by_suite(summary.rows)
    for suite in verdict.suites:
        blocks += _suite_blocks(suite, groups[suite.suite])
    blocks += _first_steps(verdict.suites, groups)
    blocks.append(f"Reproduce: {code(summary.reproduce, 600)}")
    return within_limit(blocks)


def _first_steps(suites: Sequence[SuiteVerdict], groups: Mapping[str, Sequence[Row]]) -> list[str]:
    found = next_steps(suites, groups) if len(suites) > 1 else ()
    told = [
        f"{number}. {escape(f'{step.action}: {step.gain} ({step.whence})', 400)}"
        for number, step in enumerate(found, 1)
    ]
    return ["\n".join(["**Try first**", "", *told])] if told else []


def escape(text: object, limit: int | None = None) -> str:
    """Return ``text`` so that it shows as itself: no markup, HTML, mention or link."""
    line = html.escape(wording.plain(text, limit), quote=False)
    line = _SPECIAL.sub(r"\\\1", line)
    line = _MENTION.sub("@\N{ZERO WIDTH SPACE}", line)
    return _LINK.sub(lambda found: found[0][:-1] + "\N{ZERO WIDTH SPACE}" + found[0][-1], line)


def code(text: object, limit: int | None = None) -> str:
    """Return ``text`` as a code span whose fence is longer than any backticks inside."""
    line = wording.plain(text, limit)
    longest = max((len(run) for run in re.findall(r"`+", line)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {line} {fence}" if longest else f"{fence}{line}{fence}"


def table(columns: Sequence[Column[S]], rows: Iterable[S]) -> str:
    """Return a table of GitHub Markdown."""
    header = [escape(name) for name in names(columns)]
    rule = "|".join("---:" if column.numeric else "---" for column in columns)
    lines = ([escape(text, 160) for text in cells(columns, row)] for row in rows)
    return "\n".join([_line(header), f"|{rule}|", *map(_line, lines)])


def _line(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _suite_blocks(verdict: SuiteVerdict, rows: Sequence[Row]) -> list[str]:
    blocks = [f"#### {escape(verdict.suite, 64)}", escape(verdict.facts, 400)]
    if verdict.ranking:
        blocks.append(f"**{escape(verdict.ranking)}**")
    blocks.append("\n".join(_finding(finding) for finding in verdict.findings))
    blocks.append(table(present(rows), rows))
    notes = [escape(capital(note), 400) for note in above_ideal(rows)]
    if notes:
        blocks.append("<br>\n".join(notes))
    said = frameworks.sentence(rows)
    blocks += [escape(said, 600)] if said else []
    return [
        *blocks,
        *_race_blocks(rows),
        *_recovery_blocks(rows),
        *_budget_blocks(rows),
        *_prediction_blocks(rows),
    ]


def _tables(rows: Sequence[Row], *declared: Table[Any]) -> list[str]:
    found = ((one, one.lines(rows)) for one in declared)
    return [table(one.columns_of(lines), lines) for one, lines in found if lines]


def _race_blocks(rows: Sequence[Row]) -> list[str]:
    said = [text for text in (races.headline(rows), races.target_line(rows)) if text]
    return [*(escape(text, 400) for text in said), *_tables(rows, RACES)]


def _recovery_blocks(rows: Sequence[Row]) -> list[str]:
    said = recovery.headline(rows)
    shown = (SAVES, RESTORES, FAILURES, LOST, ELASTIC)
    return [escape(said, 600), *_tables(rows, *shown)] if said else []


def _prediction_blocks(rows: Sequence[Row]) -> list[str]:
    title = f"**{capital(PREDICTIONS.title)}** ({said_of(PREDICTIONS.remark, rows)})"
    notes = [escape(capital(note), 400) for note in said_of(PREDICTIONS.notes, rows)]
    drawn = _tables(rows, PREDICTIONS)
    return [title, *drawn, "<br>\n".join(notes)] if drawn else []


def _budget_blocks(rows: Sequence[Row]) -> list[str]:
    accounted = budgeted(rows)
    columns = budget.columns_of(accounted)
    if not columns:
        return []
    title, unit = budget.TITLE.capitalize(), budget.UNIT
    notes = [escape(capital(note), 300) for note in budget.footnotes(rows, accounted)]
    return [f"**{title}** ({unit})", table(columns, accounted), "<br>\n".join(notes)]


def _finding(finding: Finding) -> str:
    notes = escape(" ".join(finding.notes), 1200)
    said = f"- **{escape(finding.case, 64)}**: {escape(finding.verdict, 2000)}"
    return f"{said}\n  {notes}" if notes else said


WHOLE = "the whole is in summary.json and report.html"


def within_limit(blocks: Sequence[str], elsewhere: str = WHOLE) -> str:
    """Join blocks as far as they are below `MAX_BYTES`; the last line says where the rest is."""
    kept: list[str] = []
    size = 0
    for block in blocks:
        lines: list[str] = []
        for line in block.split("\n"):
            size += len(line.encode()) + 1
            if size > MAX_BYTES - _RESERVED:
                kept.append("\n".join(lines))
                kept.append(f"*Cut here: {elsewhere}.*")
                return "\n\n".join(part for part in kept if part) + "\n"
            lines.append(line)
        kept.append("\n".join(lines))
        size += 1
    return "\n\n".join(kept) + "\n"
