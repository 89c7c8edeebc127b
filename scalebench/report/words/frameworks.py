"""What can be said of frameworks next to each other: who is fastest, and who is not slower."""

from collections.abc import Sequence
from dataclasses import dataclass

from scalebench import units
from scalebench.records.summary import Estimate, Row
from scalebench.report.words import wording


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
        """Whether every step time has an interval."""
        return all(_ends(row) is not None for row in self.rows)

    @property
    def as_fast(self) -> tuple[Row, ...]:
        """The others whose interval reaches that of the fastest; nothing without intervals."""
        best = _ends(self.fastest)
        if best is None:
            return ()
        ends = [(row, _ends(row)) for row in self.rows[1:]]
        return tuple(row for row, span in ends if span is not None and span[0] <= best[1])

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
        if row.step_s is not None
        and not wording.is_baseline(row)
        and not (row.correctness is not None and row.correctness.status == "deviates")
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
    return " ".join(parts)


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
    names = [wording.plain(row.case, 64) for row in found.as_fast]
    if not names:
        return "All others are significantly slower."
    rest = len(found.rows) - 1 - len(names)
    slower = f"; the other {rest} are slower" if rest > 1 else "; the other is slower" * rest
    return f"Not significantly different: {wording.joined(names)}{slower}."


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
        f"{name} {number or 'unknown'}{' (not tested)' * (name in row.framework.untested)}"
        for name, number in row.framework.versions.items()
    )
    return wording.plain(", ".join(told), 120)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _step(row: Row) -> float:
    return row.step_s.value if row.step_s is not None else 0.0


def _ends(row: Row) -> tuple[float, float] | None:
    estimate = row.step_s
    if estimate is None or estimate.low is None or estimate.high is None:
        return None
    return estimate.low, estimate.high
