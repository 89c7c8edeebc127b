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

from scalebench.gate.result import GateResult, RowVerdict
from scalebench.report.gate.table import (
    change_text,
    headline,
    interval_text,
    mismatch_texts,
    place,
    verdict_text,
    verdict_word,
    worst_first,
)
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
    for row in worst_first([row for row in result.rows if row.decides]):
        level = _LEVELS.get(row.verdict)
        if level is not None:
            level = worst if level == "error" else level
            title = f"{verdict_word(row)}: {place(row)}"
            found[level].append(command(level, title, _message(row)))
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


def _message(row: RowVerdict) -> str:
    change = " ".join(text for text in (change_text(row), interval_text(row)) if text)
    lines = [f"{verdict_text(row)}: {change}", wording.plain(row.reason, 400)]
    return "\n".join([*lines, *(wording.plain(text, 400) for text in row.explanation)])


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
