"""Marks: what a reader has to know before trusting a row, and what to do about it."""

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from scalebench.records.summary import Row
from scalebench.report.words.wording import place, plain


@dataclass(frozen=True)
class Mark:
    """A mark on a row.

    Attributes:
        letter: Stands for the name where there is no room for it.
    """

    name: str
    letter: str
    meaning: str
    remedy: str


@cache
def _marks() -> dict[str, Mark]:
    text = (resources.files("scalebench.report.words") / "marks.toml").read_text(encoding="utf-8")
    return {name: Mark(name, **texts) for name, texts in tomllib.loads(text).items()}


OF_THE_HEADLINE = frozenset(
    {
        *("deviates", "unverified", "unsteady", "probe effect", "throttled", "foreign load"),
        *("allocator retries", "swap", "link not held", "samples not counted"),
    }
)
"""Marks under which step, speedup and efficiency themselves may be wrong."""


SAID = {
    "budget open": "parts do not add up",
    "unsteady": "step time kept drifting",
    "foreign load": "other programs were running",
}
"""Stamps whose name says little, in a sentence's words."""


def said(name: str) -> str:
    """Return what a mark is called in a sentence."""
    return SAID.get(name, name)


def mark_name(stamp: str) -> str:
    """Return the name of a stamp, which may carry details behind a colon."""
    return plain(stamp.partition(":")[0], 40)


def details(row: Row, name: str) -> str:
    """Return what a row's stamps of a name say in detail; empty: nothing."""
    told = (plain(stamp.partition(":")[2], 200) for stamp in row.stamps if mark_name(stamp) == name)
    return "; ".join(text for text in told if text)


def bearers(rows: Sequence[Row], name: str) -> tuple[str, ...]:
    """Say which rows have a mark: one text for each of its details."""
    told: dict[str, list[str]] = {}
    several = len({row.suite for row in rows}) > 1
    for row in rows:
        if name in marks(row):
            of = f"{plain(row.suite, 64)}: " if several else ""
            told.setdefault(details(row, name), []).append(of + place(row))
    return tuple(
        f"{'; '.join(places)}: {found}" if found else "; ".join(places)
        for found, places in told.items()
    )


def marks(row: Row) -> tuple[str, ...]:
    """Return the names of a row's marks, the gravest first, each once."""
    found: list[str] = []
    if row.correctness is not None and row.correctness.status in ("deviates", "unverified"):
        found.append(row.correctness.status)
    if row.oversubscribed:
        found.append("oversubscribed")
    found += [mark_name(stamp) for stamp in row.stamps]
    if row.step_s is not None and row.step_s.n == 1 and "one log" not in row.stamps:
        found.append("one launch")
    if row.virtual_hosts:
        found.append("virtual hosts")
    return tuple(dict.fromkeys(name for name in found if name))


def explain(name: str) -> Mark:
    """Return the explanation of a mark; an unknown one says that it is unknown."""
    unknown = Mark(
        name,
        name[:1],
        "A mark that this version has no explanation for.",
        "Read the row with care; a newer scalebench may explain it.",
    )
    return _marks().get(name, unknown)


def letters(names: Iterable[str]) -> str:
    """Return the marks as single letters, for tables without room for words."""
    return " ".join(explain(name).letter for name in names)
