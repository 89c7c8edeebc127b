"""What the gate says as GitHub Markdown: for a pull request's comment, or a job's summary."""

from collections.abc import Sequence

from scalebench.gate.result import SAME_RUN, SEVERITY, GateResult, Mismatch, RowVerdict
from scalebench.report.gate.promise import promise_text
from scalebench.report.gate.table import (
    change_text,
    detectable_text,
    headline,
    interval_text,
    left_out,
    metric_phrase,
    value_text,
)
from scalebench.report.markdown import escape, table, within_limit
from scalebench.report.tables.layout import CASE, RANKS, Column
from scalebench.report.words import wording

ELSEWHERE = "the whole is in the output of `scalebench gate --format json`"
LONGEST_TEXT = 400


def render_verdict_markdown(result: GateResult) -> str:
    """Return the verdicts, the worst first and what is unchanged only counted; below 60 kB."""
    changed = worst_first([row for row in result.rows if row.verdict != "unchanged"])
    blocks = [f"### scalebench gate: {escape(headline(result))}", _sides(result)]
    blocks += [f"> {note}" for note in result.notes if note == SAME_RUN]
    blocks += [table(COLUMNS, changed)] if changed else []
    hidden = left_out(result)
    blocks += [f"{hidden}."] if hidden else []
    blocks += [_story(row) for row in changed if row.decides and (row.reason or row.explanation)]
    blocks += [f"> {_mismatch(mismatch)}" for mismatch in result.mismatches]
    notes = [note for note in result.notes if note != SAME_RUN]
    blocks += [f"> {escape(note, LONGEST_TEXT)}" for note in notes]
    promise = promise_text(result)
    blocks += [f"{escape(promise, LONGEST_TEXT)}."] if promise else []
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


COLUMNS: tuple[Column[RowVerdict], ...] = (
    CASE,
    RANKS,
    Column("metric", lambda r: metric_phrase(r.metric), numeric=False),
    Column("base", lambda r: value_text(r, r.base)),
    Column("new", lambda r: value_text(r, r.new)),
    Column("change", change_text),
    Column("95 %", interval_text),
    Column("detectable from", detectable_text),
    Column("verdict", verdict_text, numeric=False),
)


def _sides(result: GateResult) -> str:
    base, new = (
        f"{escape(name, 200)} ({escape(run_id, 120)})" if name != run_id else escape(name, 200)
        for name, run_id in ((result.base, result.base_run_id), (result.new, result.new_run_id))
    )
    return f"{base} → {new}"


def _story(row: RowVerdict) -> str:
    lines = [f"- **{escape(place(row))}**: {row.verdict}, {escape(row.reason, LONGEST_TEXT)}"]
    return "\n".join(lines + [f"  - {escape(text, LONGEST_TEXT)}" for text in row.explanation])


def _mismatch(mismatch: Mismatch) -> str:
    where = f"{escape(mismatch.where, 80)}: " if mismatch.where else ""
    was, now = (escape(side or "nothing", 80) for side in (mismatch.base, mismatch.new))
    end = "allowed" if mismatch.allowed else "not comparable"
    return f"different: {where}{escape(mismatch.name, 40)} was {was} and is {now} ({end})"
