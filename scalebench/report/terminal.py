"""Text for a terminal: lines that are ASCII where nothing else can be shown."""

from rich.text import Text

from scalebench.report import wording

ASCII = {
    wording.TIMES: "x", "±": "+/-", "µ": "u", wording.DASH: "-", wording.MINUS: "-", "—": "-",
    "→": "->", "…": "...", "✓": "ok", "·": "|", "─": "-", "≥": ">=", "≤": "<=",
}  # fmt: skip

CASE_WIDTHS = (24, 16, 10)
"""A longer case name is folded: at the first width, or at the next where nothing is left to go."""

GAP = 2
"""Columns of the terminal between two columns of a table."""


def to_ascii(text: str) -> str:
    """Return ``text`` in ASCII; signs have their equivalents, anything else is ``?``."""
    spelt = "".join(ASCII.get(character, character) for character in text)
    return spelt.encode("ascii", "replace").decode("ascii")


def line(content: str, ascii_only: bool, style: str = "") -> Text:
    """Return one styled line."""
    return Text(to_ascii(content) if ascii_only else content, style=style)
