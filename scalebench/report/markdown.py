"""summary.md: the verdict and the table, for a comment on a pull request."""

import html
import re
from collections.abc import Sequence

from scalebench.model_scores import predicted_rows
from scalebench.report import budget_table, predictions, wording
from scalebench.report.attributed import budgeted
from scalebench.report.columns import Column, present
from scalebench.report.findings import Finding, SuiteVerdict, judge
from scalebench.summary import Row, Summary

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
    blocks.append(f"Reproduce: {code(summary.reproduce, 600)}")
    return within_limit(blocks)


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


def _suite_blocks(verdict: SuiteVerdict, rows: Sequence[Row]) -> list[str]:
    blocks = [f"#### {escape(verdict.suite, 64)}", escape(verdict.facts, 400)]
    if verdict.ranking:
        blocks.append(f"**{escape(verdict.ranking)}**")
    blocks.append("\n".join(_finding(finding) for finding in verdict.findings))
    table = _table(present(rows), rows)
    blocks.append("\n".join(table))
    return [*blocks, *_budget_blocks(rows), *_prediction_blocks(rows)]


def _prediction_blocks(rows: Sequence[Row]) -> list[str]:
    told = predicted_rows(rows)
    if not told:
        return []
    lines = [
        "| " + " | ".join(escape(name) for name in predictions.HEADER) + " |",
        "|---|" + "---:|" * (len(predictions.HEADER) - 1),
        *("| " + " | ".join(escape(c, 160) for c in predictions.cells(row)) + " |" for row in told),
    ]
    notes = [escape(note[0].upper() + note[1:], 400) for note in predictions.footnotes(rows)]
    title = f"**{predictions.TITLE.capitalize()}** ({predictions.UNIT})"
    return [title, "\n".join(lines), "<br>\n".join(notes)]


def _budget_blocks(rows: Sequence[Row]) -> list[str]:
    accounted = budgeted(rows)
    columns = budget_table.part_columns(accounted) if accounted else []
    if not columns:
        return []
    title, unit = budget_table.TITLE.capitalize(), budget_table.UNIT
    headers = budget_table.header(columns, accounted)
    lines = [
        "| " + " | ".join(escape(name) for name in headers) + " |",
        "|---|" + "---:|" * (len(headers) - 1),
    ]
    for row, budget in accounted:
        cells = budget_table.cells(row, budget, columns, accounted)
        lines.append("| " + " | ".join(escape(cell, 160) for cell in cells) + " |")
    notes = [
        escape(note[0].upper() + note[1:], 300) for note in budget_table.footnotes(rows, accounted)
    ]
    return [f"**{title}** ({unit})", "\n".join(lines), "<br>\n".join(notes)]


def _finding(finding: Finding) -> str:
    notes = escape(" ".join(finding.notes), 1200)
    said = f"- **{escape(finding.case, 64)}**: {escape(finding.verdict, 2000)}"
    return f"{said}\n  {notes}" if notes else said


def _table(columns: Sequence[Column], rows: Sequence[Row]) -> list[str]:
    header = "| " + " | ".join(escape(column.header) for column in columns) + " |"
    rule = "|" + "|".join("---:" if column.numeric else "---" for column in columns) + "|"
    lines = [header, rule]
    for row in rows:
        cells = [escape(column.text(row), 160) for column in columns]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


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
