"""Frameworks side by side: who is fastest, who is not slower, and what each says is in force."""

from collections.abc import Sequence
from dataclasses import dataclass

from scalebench import units
from scalebench.records.rows.strategies import FrameworkFacts
from scalebench.records.summary import Estimate, Row
from scalebench.report.tables.layout import RANKS, SHRINKING_CASE, Column, Table, pages, value
from scalebench.report.words import wording

FASTEST = "fastest"
"""Said in place of how much longer a step is than the shortest."""


@dataclass(frozen=True)
class SideBySide:
    """The rows of a suite's frameworks at the largest N, and of torch's own strategies there.

    Attributes:
        rows: By step time, the shortest first.
    """

    rows: tuple[Row, ...]

    @property
    def fastest(self) -> Row:
        """The row with the shortest step."""
        return self.rows[0]

    @property
    def known(self) -> bool:
        """Whether it can be said of every row whether it is slower than the fastest."""
        return all(self.is_slower(row) is not None for row in self.rows)

    def is_slower(self, row: Row) -> bool | None:
        """Tell whether a row is significantly slower than the fastest; None: not known.

        By the ratio of their steps in the same rounds. Summaries of version 0.1 have none: there,
        by whether the intervals of both overlap.
        """
        if row is self.fastest:
            return False
        if row.against_fastest is not None:
            low = row.against_fastest.step_ratio.low
            return None if low is None else low > 1
        own, best = (r.step_s.ends if r.step_s else None for r in (row, self.fastest))
        return None if own is None or best is None else own[0] > best[1]

    @property
    def least_memory(self) -> Row | None:
        """The row whose fullest rank holds least, of those that count all; None: not known."""
        known = [
            row for row in self.rows if row.peak_memory_bytes is not None and not uncounted(row)
        ]
        return min(known, key=lambda row: row.peak_memory_bytes or 0) if known else None


def side_by_side(rows: Sequence[Row]) -> SideBySide | None:
    """Return the rows to compare; None: no framework was measured on several ranks.

    Rows whose gradients deviate from the reference are left out.
    """
    measured = [
        row
        for row in rows
        if row.step_s is not None and not wording.is_baseline(row) and not row.deviates
    ]
    sizes = [row.world_size for row in measured if row.framework is not None]
    if not sizes:
        return None
    largest = [row for row in measured if row.world_size == max(sizes)]
    return SideBySide(tuple(sorted(largest, key=_step)))


def sentence(rows: Sequence[Row]) -> str | None:
    """Say which step is the shortest, which are not significantly longer, and who needs least.

    None: there are no frameworks to compare.
    """
    found = side_by_side(rows)
    if found is None:
        return None
    best = found.fastest
    assert best.step_s is not None
    parts = [
        f"Shortest step on {wording.ranks(best)}: {wording.plain(best.case, 64)}, "
        f"{milliseconds(best.step_s)} ms."
    ]
    if len(found.rows) > 1:
        parts.append(_others(found))
    least = found.least_memory
    if least is not None and least.peak_memory_bytes is not None:
        parts.append(
            f"Least memory: {wording.plain(least.case, 64)}, "
            f"{units.bytes_(least.peak_memory_bytes)} per rank."
        )
    parts += [
        f"The memory of {wording.plain(row.case, 64)} leaves out {uncounted(row)}."
        for row in found.rows
        if uncounted(row)
    ]
    return " ".join([*parts, *_untested(found.rows)])


def _untested(rows: Sequence[Row]) -> list[str]:
    """Return the sentence on versions that the tests do not run with; nothing: there are none."""
    told = sorted(
        {
            wording.plain(_with_tested(row.framework, name), 120)
            for row in rows
            if row.framework is not None
            for name in row.framework.untested
        }
    )
    return [f"Version not tested: {wording.joined(told)}."] if told else []


def uncounted(row: Row) -> str | None:
    """Return what a row's memory leaves out; None: nothing."""
    told = row.framework.uncounted_memory if row.framework is not None else None
    return wording.plain(told, 120) if told else None


def memory(row: Row) -> str:
    """Write the peak of the fullest rank: ``"20.1 MB"``, with a sign where it is not all."""
    if row.peak_memory_bytes is None:
        return wording.DASH
    return units.bytes_(row.peak_memory_bytes) + " and more" * bool(uncounted(row))


def _others(found: SideBySide) -> str:
    if not found.known:
        return "Whether others are as fast is not known: some have no interval."
    as_fast = [row for row in found.rows[1:] if found.is_slower(row) is False]
    names = [wording.plain(row.case, 64) for row in as_fast]
    rest = len(found.rows) - 1 - len(names)
    if not names:
        return f"All others are significantly slower{_by_how_much(found)}."
    subject = f"the other {rest} are slower" if rest > 1 else "the other is slower"
    slower = f"; {subject}{_by_how_much(found)}" if rest else ""
    return f"Not significantly different: {wording.joined(names)}{slower}."


def _by_how_much(found: SideBySide) -> str:
    """Write how much longer the steps of the slower rows are: ``", by 4 to 120 %"``."""
    longer = [
        row.against_fastest.step_ratio.value - 1
        for row in found.rows
        if found.is_slower(row) and row.against_fastest is not None
    ]
    if not longer:
        return ""
    least, most = (units.significant(100 * value, digits=2) for value in (min(longer), max(longer)))
    return f", by {least} %" if least == most else f", by {least} to {most} %"


def slower_by(row: Row) -> str:
    """Write how much longer a row's step is than the shortest, percent: ``"8.1 (5.2 to 11.0)"``."""
    if row.against_fastest is None:
        return wording.DASH
    if row.against_fastest.fastest == (row.suite, row.case, row.world_size):
        return FASTEST
    ratio = row.against_fastest.step_ratio
    value, *ends = (
        None if one is None else wording.signed(100 * (one - 1))
        for one in (ratio.value, ratio.low, ratio.high)
    )
    return f"{value} ({ends[0]} to {ends[1]})" if all(ends) else f"{value}"


def milliseconds(estimate: Estimate) -> str:
    """Write a step time with its interval: ``"27.5 ± 0.8"``."""
    return wording.plus_minus(estimate, 1e3)


def settings(row: Row) -> str:
    """Write what a framework says is in force: ``"gradient_clipping 0, …"``."""
    if row.framework is None:
        return wording.DASH
    told = (f"{name} {_shown(value)}" for name, value in row.framework.settings.items())
    return wording.plain(", ".join(told), 400)


def versions(row: Row) -> str:
    """Write the framework's versions: ``"deepspeed 0.19.8"``."""
    if row.framework is None:
        return wording.DASH
    told = (
        _with_tested(row.framework, name)
        if name in row.framework.untested
        else f"{name} {number or 'unknown'}"
        for name, number in row.framework.versions.items()
    )
    return wording.plain(", ".join(told), 120)


def _with_tested(facts: FrameworkFacts, name: str) -> str:
    """Write a version next to the one that is tested: ``"deepspeed 9.0 (tested: 0.19.8)"``."""
    tested = facts.tested.get(name)
    said = f"tested: {tested}" if tested else "not tested"
    return f"{name} {facts.versions.get(name) or 'unknown'} ({said})"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _step(row: Row) -> float:
    return row.step_s.value if row.step_s is not None else 0.0


COLUMNS: tuple[Column[Row], ...] = (
    SHRINKING_CASE,
    RANKS,
    value("step, ms", lambda row: row.step_s, milliseconds),
    Column("longer than the fastest by, %", slower_by),
    Column("memory per rank", memory),
    Column("version", versions, numeric=False),
    Column("settings", settings, numeric=False),
)


FRAMEWORKS = Table(
    "Frameworks",
    COLUMNS,
    lambda rows: [row for row in rows if row.framework is not None],
    notes=("Settings are those that the framework itself reports, by its own names.",),
)
tables = pages(FRAMEWORKS)
