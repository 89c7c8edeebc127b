"""What the gate says to CI: GitHub's annotations and summary, JUnit XML, and one sentence.

What the gate says to GitHub Actions: annotations, and the summary of the job.

Annotations are workflow commands on standard output. The runner reads what follows ``::`` at the
beginning of a line as a command, so that everything that comes from a run is escaped as GitHub's
toolkit does it: ``%``, line feed and carriage return in the text, and ``:`` and ``,`` as well in a
property. GitHub shows 10 errors, 10 warnings and 10 notices of a step and drops the rest without
a word; the last one of each kind says here how many there are. A job's summary holds 1 MiB for each
step, and one that is larger is not shown at all.

What the gate says as JUnit XML: a test case for each verdict, and one for all of them.

What decides and is slower, probably slower or missing is a failure; inconclusive and not
comparable are errors, since nothing was shown. What is shown only is skipped.
The case ``gate / verdict`` is green exactly
where the exit code is 0, so that a result with no rows at all is red as well.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Literal
from xml.etree import ElementTree

from scalebench.gate.result import SAME_RUN, GateResult, RowVerdict
from scalebench.grouping import by_key
from scalebench.report.export.junit import case_of, legal, suite_of, written
from scalebench.report.gate_table import (
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
_OF_ROW: dict[str, str] = {
    **dict.fromkeys(("regressed", "probably regressed", "missing"), "failure"),
    **dict.fromkeys(("inconclusive", "not comparable"), "error"),
}
_OF_ALL: dict[str, str] = {
    "regressed": "failure",
    "failed": "failure",
    "inconclusive": "error",
    "not comparable": "error",
}


def sentence(result: GateResult) -> str:
    """Return in one sentence how much faster the new run is.

    ``B is 1.08 ± 0.02 times as fast as A (ddp, 2 ranks); memory equal.`` It is about the first case
    at the largest number of ranks, with the 95 % interval over launches. Empty: one run is compared
    with itself, or no step time with another.
    """
    steps = [row for row in result.rows if row.metric == "step_s"]
    if SAME_RUN in result.notes or not steps:
        return ""
    base, new = _short(result.base, result.new)
    known = [r for r in steps if r.change is not None and r.verdict != "not comparable"]
    if not known:
        return f"How fast {new} is against {base} is not known: {_why_not(steps, result)}."
    largest = max(row.world_size for row in known)
    first, *others = [row for row in known if row.world_size == largest]
    ranks = f"{largest} rank{'' if largest == 1 else 's'}"
    place = f"{wording.plain(first.case, 64)}, {ranks}"
    if others:
        ratios = [_ratio(row.change) for row in (first, *others)]
        place += f"; all {len(ratios)} cases: {min(ratios):.2f} to {max(ratios):.2f} times as fast"
    return f"{_speed(first, new, base)} ({place}); {_memory(result, first)}."


def _short(*names: str) -> list[str]:
    short = [PurePath(name).name or name for name in names]
    return [wording.plain(one, 80) for one in (short if len({*short}) == len(names) else names)]


def _ratio(change: float | None) -> float:
    return 1 / (1 + (change or 0.0))


def _speed(row: RowVerdict, new: str, base: str) -> str:
    if row.low is None or row.high is None or row.low <= -1:  # it may be any number
        told = "from too few launches for an interval"
        return f"{new} is {_ratio(row.change):.2f} times as fast as {base}, {told}"
    if row.low <= 0 <= row.high:
        ratio = _with_half_width(_ratio(row.change), _ratio(row.high), _ratio(row.low))
        return f"No difference in speed is seen between {new} and {base}: {ratio} times as fast"
    if row.high < 0:
        ratio = _with_half_width(_ratio(row.change), _ratio(row.high), _ratio(row.low))
        return f"{new} is {ratio} times as fast as {base}"
    ratio = _with_half_width(1 + (row.change or 0.0), 1 + row.low, 1 + row.high)
    return f"{new} takes {ratio} times as long as {base}"


LOPSIDED = 0.2
"""Of half an interval: where its middle is further from the value, both ends are written."""


def _with_half_width(value: float, low: float, high: float) -> str:
    half = (high - low) / 2
    digits = 2 if half >= 0.01 else 3
    if abs(high + low - 2 * value) > LOPSIDED * half:
        return f"{value:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"
    return f"{value:.{digits}f} ± {half:.{digits}f}"


def _memory(result: GateResult, first: RowVerdict) -> str:
    rows = [r for r in result.rows if r.place == first.place and r.metric == "peak_memory_bytes"]
    if not rows or rows[0].change is None:
        return "memory not known"
    row = rows[0]
    if abs(rows[0].change) <= (row.floor or 0.0):
        return "memory equal"
    interval = interval_text(row)
    return f"memory {change_text(row)}{f' ({interval})' if interval else ''}"


def _why_not(steps: Sequence[RowVerdict], result: GateResult) -> str:
    if all(row.verdict == "missing" for row in steps):
        return "they have no case in common that both have measured"
    different = [wording.plain(m.name, 40) for m in result.mismatches if not m.allowed]
    if different:
        return f"they differ in {wording.joined(list(dict.fromkeys(different)))}"
    return wording.plain(steps[0].reason, 200)


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


def render_verdict_junit(result: GateResult) -> str:
    """Return every verdict as a test case."""
    root = ElementTree.Element("testsuites", {"name": legal(f"{result.base} → {result.new}")})
    suites = by_key((f"gate.{row.suite}", _case(row)) for row in result.rows)
    for name, cases in {**suites, "gate": [_overall(result)]}.items():
        root.append(suite_of(name, cases))
    return written(root)


def _case(row: RowVerdict) -> ElementTree.Element:
    name = f"{row.case} N={row.world_size} {row.metric}"
    told = f"{verdict_word(row)}: {row.reason}"
    outcome = _OF_ROW.get(row.verdict)
    if not row.decides:
        outcome, told = "skipped", f"shown only: {told}"
    values = [value_text(row, found) for found in (row.base, row.new)]
    numbers = (
        f"{metric_phrase(row.metric)}: {' → '.join(values)}",
        f"change: {change_text(row)} {interval_text(row)}",
        f"smallest findable: {detectable_text(row)}",
        f"launches: {row.base_launches} → {row.new_launches}",
    )
    told_by = {outcome: {"message": told, "type": row.verdict}} if outcome else {}
    return case_of(row.suite, name, [*numbers, *row.explanation], told_by)


def _overall(result: GateResult) -> ElementTree.Element:
    lines = [*result.notes, *mismatch_texts(result)]
    outcome = _OF_ALL.get(result.verdict) if result.exit_code else None
    told = {"message": headline(result), "type": result.verdict}
    return case_of("gate", "verdict", lines, {outcome: told} if outcome else {})
