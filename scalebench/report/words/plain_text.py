"""One line of text that is safe to print, from a text of unknown origin."""

import unicodedata

_CONTROL = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def plain(text: object, limit: int | None = None) -> str:
    """Return ``text`` as one line without control, format or unassigned characters.

    Args:
        text: Any value of a run.
        limit: Longest text returned; a longer one ends in ``…``.
    """
    spaced = " ".join(str(text).split())
    line = "".join(c for c in spaced if unicodedata.category(c) not in _CONTROL)
    if limit is not None and len(line) > limit:
        return line[: limit - 1].rstrip() + "…"
    return line
