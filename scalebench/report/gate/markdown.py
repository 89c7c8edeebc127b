"""What the gate says as GitHub Markdown: for a pull request's comment, or a job's summary."""

from scalebench.gate.result import SAME_RUN, GateResult, RowVerdict
from scalebench.report.gate.table import (
    change_text,
    detectable_text,
    headline,
    interval_text,
    is_quiet,
    left_out,
    metric_phrase,
    mismatch_texts,
    place,
    promise_text,
    sure,
    value_text,
    verdict_text,
    verdict_word,
    worst_first,
)
from scalebench.report.markdown import escape, table, within_limit
from scalebench.report.tables.layout import CASE, RANKS, Column
from scalebench.report.words import wording

ELSEWHERE = "the whole is in the output of `scalebench gate --format json`"
LONGEST_TEXT = 400


def render_verdict_markdown(result: GateResult) -> str:
    """Return the verdicts, the worst first and what is unchanged only counted; below 60 kB."""
    changed = worst_first([row for row in result.rows if not is_quiet(row)])
    blocks = [f"### scalebench gate: {escape(headline(result))}", _sides(result)]
    blocks += [f"> {note}" for note in result.notes if note == SAME_RUN]
    if changed:
        told = f"interval: of the change, over launches{sure(result)}."
        blocks += [table(COLUMNS, changed), told]
    hidden = left_out(result)
    blocks += [f"{hidden}."] if hidden else []
    blocks += [_story(row) for row in changed if row.explanation]
    blocks += [f"> {escape(text, LONGEST_TEXT)}" for text in mismatch_texts(result)]
    notes = [note for note in result.notes if note != SAME_RUN]
    blocks += [f"> {escape(note, LONGEST_TEXT)}" for note in notes]
    promise = promise_text(result)
    blocks += [f"{escape(promise, LONGEST_TEXT)}."] if promise else []
    return within_limit(blocks, ELSEWHERE)


COLUMNS: tuple[Column[RowVerdict], ...] = (
    CASE,
    RANKS,
    Column("metric", lambda r: metric_phrase(r.metric), numeric=False),
    Column("base", lambda r: value_text(r, r.base)),
    Column("new", lambda r: value_text(r, r.new)),
    Column("change", change_text),
    Column("interval", interval_text),
    Column("smallest findable", detectable_text),
    Column("verdict", verdict_text, numeric=False),
    Column("why", lambda r: wording.plain(r.reason, 160), numeric=False),
)


def _sides(result: GateResult) -> str:
    base, new = (
        f"{escape(name, 200)} ({escape(run_id, 120)})" if name != run_id else escape(name, 200)
        for name, run_id in ((result.base, result.base_run_id), (result.new, result.new_run_id))
    )
    return f"{base} → {new}"


def _story(row: RowVerdict) -> str:
    lines = [f"- **{escape(place(row))}**: {verdict_word(row)}"]
    return "\n".join(lines + [f"  - {escape(text, LONGEST_TEXT)}" for text in row.explanation])
