"""What the words of the page mean, in a sentence or two: read from ``docs/definitions.md``.

The document is the one source; a wheel has a copy of it.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from scalebench.records.rows.budget import PARTS

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


@cache
def definitions() -> Mapping[str, str]:
    """Return word on the page → its definition; empty where the document is missing."""
    rows = _rows(_document())
    return {word: short(rows[name]) for word, name in WORDS.items() if name in rows}


@cache
def explanations() -> Mapping[str, str]:
    """Return every word and field that the document defines → its whole definition."""
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
            found.setdefault(plain(cells[0]), plain(cells[1]))
    return found


def plain(text: str) -> str:
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
