"""What the gate says to GitHub Actions: annotations, and the summary of the job.

Annotations are workflow commands on standard output. The runner reads what follows ``::`` at the
beginning of a line as a command, so that everything that comes from a run is escaped as GitHub's
toolkit does it: ``%``, line feed and carriage return in the text, and ``:`` and ``,`` as well in a
property. GitHub shows 10 errors, 10 warnings and 10 notices of a step and drops the rest without
a word; the last one of each kind says here how many there are. A job's summary holds 1 MiB for each
step, and one that is larger is not shown at all.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

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

Level = Literal["error", "warning", "notice"]

MOST_OF_A_LEVEL = 10
LONGEST_MESSAGE = 2000
LONGEST_TITLE = 200
MAX_SUMMARY_BYTES = 1024 * 1024

_LEVELS: dict[str, Level] = {
    **dict.fromkeys(("regressed", "probably regressed", "missing"), "error"),
    **dict.fromkeys(("not comparable", "inconclusive"), "warning"),
    "improved": "notice",
}


def render_verdict_github(result: GateResult) -> str:
    """Return the annotations, one line each; the first says the verdict on the whole.

    There is an error only where the exit code is not 0.
    """
    worst: Level = "error" if result.exit_code else "warning"
    of_all: Level = "notice" if result.verdict == "passed" else worst
    found: dict[Level, list[str]] = {"error": [], "warning": [], "notice": []}
    found[of_all].append(command(of_all, "scalebench gate", headline(result)))
    alike: dict[tuple[object, ...], list[RowVerdict]] = {}
    for row in worst_first([row for row in result.rows if row.decides]):
        kind = (row.unit, "memory" in row.metric)  # bytes are also sent
        about = (row.suite, row.case, row.world_size, row.verdict, *kind)
        alike.setdefault(about, []).append(row)
    for row, *others in alike.values():
        level = _LEVELS.get(row.verdict)
        if level is not None:
            level = worst if level == "error" else level
            title = f"{verdict_word(row)}: {place(row)}"
            found[level].append(command(level, title, _message(row, others)))
    forbidding = replace(result, mismatches=tuple(m for m in result.mismatches if not m.allowed))
    for told in mismatch_texts(forbidding):
        found["warning"].append(command("warning", "not comparable", told))
    lines = [line for level, lines in found.items() for line in _limited(level, lines)]
    return "\n".join(lines) + "\n"


def command(level: Level, title: str, message: str) -> str:
    """Return a workflow command that makes an annotation."""
    told = wording.plain(title, LONGEST_TITLE)
    told = _escaped(told).replace(":", "%3A").replace(",", "%2C")
    lines = "\n".join(wording.plain(line) for line in message.split("\n"))
    return f"::{level} title={told}::{_escaped(lines[:LONGEST_MESSAGE])}"


def append_to_summary(path: Path, markdown: str) -> bool:
    """Append Markdown to a job's summary; False: it has no room for it and stays as it was.

    Raises:
        OSError: The file cannot be written.
    """
    content = ("\n" + markdown).encode()
    size = path.stat().st_size if path.exists() else 0
    if size + len(content) > MAX_SUMMARY_BYTES:
        return False
    with path.open("ab") as file:
        file.write(content)
    return True


def _message(row: RowVerdict, others: Sequence[RowVerdict]) -> str:
    """Say what changed, and in a line what else of the same row and unit did."""
    change = " ".join(text for text in (change_text(row), interval_text(row)) if text)
    lines = [f"{verdict_text(row)}: {change}", wording.plain(row.reason, 400)]
    changes = {one.metric: f" {change_text(one)}" if one.change else "" for one in others}
    also = ", ".join(metric_phrase(metric) + change for metric, change in changes.items())
    lines += [wording.plain(text, 400) for text in row.explanation]
    return "\n".join([*lines, *([f"also {also}"] if also else [])])


def _limited(level: Level, lines: Sequence[str]) -> list[str]:
    """Return at most as many annotations as GitHub shows; the last says how many were left out."""
    if len(lines) <= MOST_OF_A_LEVEL:
        return list(lines)
    kept = list(lines[: MOST_OF_A_LEVEL - 1])
    left_out = len(lines) - len(kept)
    told = f"{left_out} more of these are not shown here; the table of the gate has all."
    return [*kept, command(level, "scalebench gate", told)]


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


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
