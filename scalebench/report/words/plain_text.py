"""Text that is safe to print, from a text of unknown origin: the only place that decides it."""

import re
import unicodedata

_CONTROL = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")


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
