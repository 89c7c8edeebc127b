"""A table of texts on the page: what it shows, what has to be known to read it, its lines."""

from dataclasses import dataclass, replace

MOST_LINES = 200
"""Of one table; what is left out stands in summary.json."""


@dataclass(frozen=True)
class PlainTable:
    """A table of texts.

    Attributes:
        title: What it shows.
        note: What has to be known to read it; may be empty.
        words: Indices of the columns that hold words; the others are numbers.
        folded: Shown on demand only.
    """

    title: str
    note: str
    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    words: frozenset[int] = frozenset({0})
    folded: bool = False

    def shortened(self) -> "PlainTable":
        """Return the table with at most `MOST_LINES` lines; its note says how many are missing."""
        missing = len(self.lines) - MOST_LINES
        if missing <= 0:
            return self
        note = f"{self.note} {missing} more are in summary.json.".lstrip()
        return replace(self, note=note, lines=self.lines[:MOST_LINES])
