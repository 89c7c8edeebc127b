"""Marks and lines under a table: what to know before trusting a row, and what to do about it."""

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from math import ceil

from scalebench import units
from scalebench.grouping import by_key
from scalebench.records.rows.steps import AxisFigures
from scalebench.records.run import ImpreciseRow
from scalebench.records.summary import Row, Summary
from scalebench.report.words import wording
from scalebench.report.words.wording import place, plain

NAMED = 2
"""Rows that are named; of more, the widest."""

LONGEST_MINUTES = 60
"""A longer budget is no advice: more than the time makes such a row wide."""


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


def precision_note(summary: Summary) -> str | None:
    """Say which efficiencies are known less well than wanted; None: none, or nothing was wanted.

    ``"target precision ± 3 % not reached in 90 s by 1 of 6 rows (ddp, N=2: ± 4.2 %); reaching it
    would take --budget 4m"``
    """
    reached = summary.precision
    if reached is None or not reached.imprecise:
        return None
    widest = sorted(reached.imprecise, key=lambda row: -(row.half_width or float("inf")))
    named = "; ".join(_row(row) for row in widest[:NAMED])
    more = "; …" if len(widest) > NAMED else ""
    told = (
        f"target precision ± {_percent(reached.half_width)} not reached in "
        f"{reached.budget_s:g} s by {len(widest)} of {reached.num_rows} rows ({named}{more})"
    )
    missing = [row.more_s for row in widest if row.more_s is not None]
    if not missing:
        return told
    minutes = ceil((reached.budget_s + max(missing)) / 60)
    if minutes > LONGEST_MINUTES:
        return (
            f"{told}; reaching it here would take more than an hour: close other programs "
            "(see scalebench doctor), or ask for less (--precision)"
        )
    return f"{told}; reaching it would take --budget {minutes}m"


def _row(row: ImpreciseRow) -> str:
    width = "no interval"
    if row.half_width is not None:  # rounded up: 3.02 % is not the 3 % that was wanted
        width = f"± {_percent(ceil(1e3 * row.half_width - 1e-6) / 1e3)}"
    return f"{wording.plain(row.case, 64)}, N={row.world_size}: {width}"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"


MOST_NAMED = 3
"""Rows that a line names; of more it says how many."""

FASTER = (
    "faster than perfect scaling of the plain model, significantly: the strategy also changes how "
    "a step runs (buckets, memory, size of its pieces), and 100 % is the plain model in one process"
)
WITHIN = "not significantly: the interval includes 100 %"
NO_INTERVAL = "without an interval this may be noise: run again with --repeats 3"


def above_ideal(rows: Sequence[Row]) -> list[str]:
    """Explain the efficiencies above 100 % of a suite; one line for each reason."""
    found = by_key(
        (_reason(row), wording.place(row))
        for row in rows
        if row.efficiency is not None and not wording.is_baseline(row)
        if float(wording.point(row.efficiency, 100)) > 100
    )
    return [f"above 100 %, {_named(places)}: {reason}" for reason, places in found.items()]


def _reason(row: Row) -> str:
    low = row.efficiency.low if row.efficiency else None
    if low is None:
        return NO_INTERVAL
    return FASTER if low > 1 else WITHIN


def _named(places: Sequence[str]) -> str:
    if len(places) <= MOST_NAMED + 1:
        return "; ".join(places)
    return f"{'; '.join(places[:MOST_NAMED])} and {len(places) - MOST_NAMED} more"


LITTLE = 0.01
"""Part of a step below which exposed communication is not worth a sentence."""
SLOWER = 2.0
"""How many times slower than along the others messages have to be for their link to be named."""


def costliest(row: Row) -> AxisFigures | None:
    """Return the dimension along which most communication is exposed; None: there are not two."""
    axes = row.axes or []
    step_s = row.step_s.value if row.step_s is not None else None
    exposed_s = sum(one.exposed_s for one in axes)
    if len(axes) < 2 or exposed_s <= 0 or (step_s is not None and exposed_s < LITTLE * step_s):
        return None
    return max(axes, key=lambda one: one.exposed_s)


def axis_sentence(row: Row) -> str | None:
    """Say along which dimension of its mesh a row loses most time, and how fast that one is."""
    most = costliest(row)
    if most is None:
        return None
    axes = row.axes or []
    share = most.exposed_s / sum(one.exposed_s for one in axes)
    name = wording.plain(most.axis, 40)
    said = f"Axis {name} has {units.percent(share)} of the exposed communication"
    others = [one.wire_byte_per_s for one in axes if one is not most]
    known = [rate for rate in others if rate is not None]
    own = most.wire_byte_per_s
    if own is None or not known or min(known) < SLOWER * own:
        return f"{said}."
    return (
        f"{said}: it moves {units.bytes_(own)}/s, the others {units.bytes_(min(known))}/s or more. "
        "Its links are slower, or its ranks wait; another order of the mesh may help."
    )


def axis_sentences(rows: Sequence[Row]) -> str | None:
    """Say it of the row with the most ranks; None: no row has several dimensions."""
    told = [(row.world_size, row.case, said) for row in rows if (said := axis_sentence(row))]
    if not told:
        return None
    world_size, case, said = max(told, key=lambda one: one[0])
    return f"{wording.plain(case, 64)} at N={world_size}: {said}"
