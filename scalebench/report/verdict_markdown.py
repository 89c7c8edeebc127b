"""What the gate says as GitHub Markdown: for a pull request's comment, or a job's summary."""

from collections.abc import Sequence

from scalebench.report import wording
from scalebench.report.markdown import escape, within_limit
from scalebench.report.verdict_table import (
    change_text,
    detectable_text,
    headline,
    interval_text,
    metric_phrase,
    value_text,
)
from scalebench.verdict.result import SEVERITY, GateResult, Mismatch, RowVerdict

HEADER = ("case", "N", "metric", "base", "new", "change", "95 %", "detectable from", "verdict")
ELSEWHERE = "the whole is in the output of `scalebench gate --format json`"
LONGEST_TEXT = 400


def render_verdict_markdown(result: GateResult) -> str:
    """Return the verdicts, the worst first and what is unchanged only counted; below 60 kB."""
    changed = worst_first([row for row in result.rows if row.verdict != "unchanged"])
    unchanged = len(result.rows) - len(changed)
    blocks = [f"### scalebench gate: {escape(headline(result))}", _sides(result)]
    blocks += [_table(changed)] if changed else []
    blocks += [f"{unchanged} unchanged, not shown."] if unchanged else []
    blocks += [_story(row) for row in changed if row.decides and (row.reason or row.explanation)]
    blocks += [f"> {_mismatch(mismatch)}" for mismatch in result.mismatches]
    blocks += [f"> {escape(note, LONGEST_TEXT)}" for note in result.notes]
    return within_limit(blocks, ELSEWHERE)


def worst_first(rows: Sequence[RowVerdict]) -> list[RowVerdict]:
    """Return rows in the order in which a reader wants them: what decides, then by severity."""
    return sorted(rows, key=lambda row: (not row.decides, SEVERITY.index(row.verdict)))


def place(row: RowVerdict) -> str:
    """Name what a verdict is about: ``"ddp, N=2, step time"``."""
    return f"{wording.plain(row.case, 64)}, N={row.world_size}, {metric_phrase(row.metric)}"


def verdict_text(row: RowVerdict) -> str:
    """Write a verdict; in brackets where it does not decide, with what would decide it."""
    told: str = row.verdict if row.decides else f"({row.verdict})"
    more = row.further_launches
    return told if more is None else f"{told}, {more} more launches on each side would decide"


def _sides(result: GateResult) -> str:
    base, new = (
        f"{escape(name, 200)} ({escape(run_id, 120)})" if name != run_id else escape(name, 200)
        for name, run_id in ((result.base, result.base_run_id), (result.new, result.new_run_id))
    )
    return f"{base} → {new}"


def _table(rows: Sequence[RowVerdict]) -> str:
    lines = [
        "| " + " | ".join(HEADER) + " |",
        "|---|---:|---|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        cells = (
            wording.plain(row.case, 64),
            row.world_size,
            metric_phrase(row.metric),
            value_text(row, row.base),
            value_text(row, row.new),
            change_text(row),
            interval_text(row),
            detectable_text(row),
            verdict_text(row),
        )
        lines.append("| " + " | ".join(escape(cell, 160) for cell in cells) + " |")
    return "\n".join(lines)


def _story(row: RowVerdict) -> str:
    lines = [f"- **{escape(place(row))}**: {row.verdict}, {escape(row.reason, LONGEST_TEXT)}"]
    return "\n".join(lines + [f"  - {escape(text, LONGEST_TEXT)}" for text in row.explanation])


def _mismatch(mismatch: Mismatch) -> str:
    where = f"{escape(mismatch.where, 80)}: " if mismatch.where else ""
    was, now = (escape(side or "nothing", 80) for side in (mismatch.base, mismatch.new))
    end = "allowed" if mismatch.allowed else "not comparable"
    return f"different: {where}{escape(mismatch.name, 40)} was {was} and is {now} ({end})"
