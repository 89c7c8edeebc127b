"""What ``scalebench compare`` begins with: how much faster, and with how much more memory."""

from collections.abc import Sequence
from pathlib import PurePath

from scalebench.gate.result import SAME_RUN, GateResult, RowVerdict
from scalebench.report.gate.table import change_text, interval_text
from scalebench.report.words import wording


def sentence(result: GateResult) -> str:
    """Return in one sentence how much faster the new run is.

    ``B is 1.08 ± 0.02 times as fast as A (ddp, 2 ranks); memory equal.`` It is about the first case
    at the largest number of ranks, with the 95 % interval over launches. Empty: one run is compared
    with itself, or no step time with another.
    """
    steps = [row for row in result.rows if row.metric == "step_s"]
    if SAME_RUN in result.notes or not steps:
        return ""
    base, new = _short(result.base, result.new)
    known = [r for r in steps if r.change is not None and r.verdict != "not comparable"]
    if not known:
        return f"How fast {new} is against {base} is not known: {_why_not(steps, result)}."
    largest = max(row.world_size for row in known)
    first, *others = [row for row in known if row.world_size == largest]
    ranks = f"{largest} rank{'' if largest == 1 else 's'}"
    place = f"{wording.plain(first.case, 64)}, {ranks}"
    if others:
        ratios = [_ratio(row.change) for row in (first, *others)]
        place += f"; all {len(ratios)} cases: {min(ratios):.2f} to {max(ratios):.2f} times as fast"
    return f"{_speed(first, new, base)} ({place}); {_memory(result, first)}."


def _short(*names: str) -> list[str]:
    short = [PurePath(name).name or name for name in names]
    return [wording.plain(one, 80) for one in (short if len({*short}) == len(names) else names)]


def _ratio(change: float | None) -> float:
    return 1 / (1 + (change or 0.0))


def _speed(row: RowVerdict, new: str, base: str) -> str:
    if row.low is None or row.high is None or row.low <= -1:  # it may be any number
        told = "from too few launches for an interval"
        return f"{new} is {_ratio(row.change):.2f} times as fast as {base}, {told}"
    if row.low <= 0 <= row.high:
        ratio = _with_half_width(_ratio(row.change), _ratio(row.high), _ratio(row.low))
        return f"No difference in speed is seen between {new} and {base}: {ratio} times as fast"
    if row.high < 0:
        ratio = _with_half_width(_ratio(row.change), _ratio(row.high), _ratio(row.low))
        return f"{new} is {ratio} times as fast as {base}"
    ratio = _with_half_width(1 + (row.change or 0.0), 1 + row.low, 1 + row.high)
    return f"{new} takes {ratio} times as long as {base}"


LOPSIDED = 0.2
"""Of half an interval: where its middle is further from the value, both ends are written."""


def _with_half_width(value: float, low: float, high: float) -> str:
    half = (high - low) / 2
    digits = 2 if half >= 0.01 else 3
    if abs(high + low - 2 * value) > LOPSIDED * half:
        return f"{value:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"
    return f"{value:.{digits}f} ± {half:.{digits}f}"


def _memory(result: GateResult, first: RowVerdict) -> str:
    rows = [r for r in result.rows if r.place == first.place and r.metric == "peak_memory_bytes"]
    if not rows or rows[0].change is None:
        return "memory not known"
    row = rows[0]
    if abs(rows[0].change) <= (row.floor or 0.0):
        return "memory equal"
    interval = interval_text(row)
    return f"memory {change_text(row)}{f' ({interval})' if interval else ''}"


def _why_not(steps: Sequence[RowVerdict], result: GateResult) -> str:
    if all(row.verdict == "missing" for row in steps):
        return "they have no case in common that both have measured"
    different = [wording.plain(m.name, 40) for m in result.mismatches if not m.allowed]
    if different:
        return f"they differ in {wording.joined(list(dict.fromkeys(different)))}"
    return wording.plain(steps[0].reason, 200)
