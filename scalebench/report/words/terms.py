"""What the words of the page mean; and the only place that decides which text is safe to print.

Meanings are read from ``docs/definitions.md``: the one source, of which a wheel has a copy.
"""

import re
import unicodedata
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_CONTROL = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")
PACKAGE = Path(__file__).resolve().parents[2]
INSTALLED = PACKAGE / "_docs" / "definitions.md"
CHECKED_OUT = PACKAGE.parent / "docs" / "definitions.md"

AS_THEY_ARE = (
    *("strong scaling", "weak scaling", "virtual hosts", "unsteady", "unverified"),
    *("oversubscribed", "paced", "link not held", "lost a rank", "bound", "communication unseen"),
    *("budget open", "probe effect", "estimates disagree", "kernels lost", "foreign load"),
    *("throttled", "clocks differ", "allocator retries", "swap", "skipped steps"),
)

WORDS: Mapping[str, str] = {
    "case": "case",
    "row": "row",
    "launch": "launch, cell",
    "step": "step time",
    "samples/s": "throughput X",
    "speedup": "speedup S(N)",
    "efficiency": "efficiency E(N)",
    "baseline": "baseline",
    "loss": "loss_equal",
    "peak mem": "peak memory",
    "peak": "peak memory",
    "communication": "comm_s",
    "compute": "compute_s",
    "exposed": "exposed_comm_s",
    "waiting": "wait_s",
    "transfer": "exposed_transfer_s",
    "tracing": "trace_overhead",
    "probes": "probe_effect",
    **{word: word for word in AS_THEY_ARE},
}
"""Word on the page → the same in the tables of the document, without its marks."""

OF_LOGS = (*tuple(WORDS)[:11], "strong scaling", "weak scaling")
"""Those that a run read from logs has."""

HEADER = {"---", "word", "field"}
"""What stands in the first column of a table's head."""

SHORT, LONG = 30, 240
"""Characters: sentences are added while a definition is shorter than the first, up to the other."""


def plain(text: object, limit: int | None = None) -> str:
    """Return ``text`` as one line without control, format or unassigned characters.

    A text that is longer than ``limit`` ends in ``…``.
    """
    line = " ".join(printable(" ".join(str(text).split())).split())
    if limit is not None and len(line) > limit:
        return line[: limit - 1].rstrip() + "…"
    return line


def printable(text: str, colour: bool = False) -> str:
    """Return ``text`` without what steers a terminal or reorders a line; lines and tabs stay.

    ``colour`` keeps the sequences that set a colour, which are scalebench's own.
    """
    if colour:
        parts = _COLOUR.split(text)
        return "".join(p if i % 2 else printable(p) for i, p in enumerate(parts))
    return "\n".join(map(_printable_line, text.split("\n")))


def _printable_line(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(map(_shown, line))


def _shown(character: str) -> str:
    """Return nothing for what steers; half a character, as in names that are no UTF-8, escaped."""
    kind = unicodedata.category(character)
    if kind == "Cs":
        return _escape(character)
    return character if character == "\t" or kind not in _CONTROL else ""


def escaped_json(text: str) -> str:
    """Return a JSON document that says the same, its control characters written as escapes."""
    return "\n".join(map(_escaped_line, text.split("\n")))


def _escaped_line(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(c if unicodedata.category(c) not in _CONTROL else _escape(c) for c in line)


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


@cache
def definitions() -> Mapping[str, str]:
    """Return word on the page → its definition; empty where the document is missing."""
    rows = _rows(_document())
    return {word: short(rows[name]) for word, name in WORDS.items() if name in rows}


@cache
def explanations() -> Mapping[str, str]:
    """Return every word and field that the document defines → its whole definition."""
    from scalebench.records.rows.budget import PARTS

    rows = _rows(_document())
    names = {part.name: part.meaning for part in PARTS}
    names |= {name: text for key, text in rows.items() for name in key.split(", ")}
    told = names | {word: rows[name] for word, name in WORDS.items() if name in rows}
    told |= {"open": told["budget open"]} if "budget open" in told else {}
    return {name: text for name, text in told.items() if name not in HEADER}


def _document() -> str:
    found = (path for path in (INSTALLED, CHECKED_OUT) if path.is_file())
    return next((path.read_text("utf-8") for path in found), "")


def _rows(document: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in document.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == 2:
            found.setdefault(without_marks(cells[0]), without_marks(cells[1]))
    return found


def without_marks(text: str) -> str:
    """Return a cell of Markdown without its marks: links as their text."""
    linked = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"\*\*|`", "", linked).strip()


def short(definition: str) -> str:
    """Return the first sentences of a definition."""
    sentences = re.split(r"(?<=[.;]) (?=[A-Z])", definition)
    said = sentences[0]
    for sentence in sentences[1:]:
        if len(said) >= SHORT or len(said) + len(sentence) > LONG:
            break
        said = f"{said} {sentence}"
    return said
