"""Where a change comes from, told by the two loss budgets and the exact quantities."""

from collections.abc import Mapping, Sequence

from scalebench import units
from scalebench.gate.observation import collective_counts
from scalebench.gate.result import Mismatch
from scalebench.records.rows.budget import PARTS, agreeing
from scalebench.records.summary import Row

TELLING = 0.1
"""Of the change: smaller parts are not named."""


def explain_efficiency(base: Row, new: Row) -> list[str]:
    """Say which parts of the step took the points that the efficiency lost, or gave them back."""
    if base.efficiency is None or new.efficiency is None:
        return []
    was, is_ = base.efficiency.value, new.efficiency.value
    points = 100 * (is_ - was)
    word = "fell" if points < 0 else "rose"
    line = (
        f"efficiency at N={new.world_size} {word} {abs(points):.1f} points, "
        f"from {100 * was:.1f} % to {100 * is_:.1f} %"
    )
    if base.budget is None or new.budget is None:
        return [f"{line}; the cause is not known, because one side has no loss budget"]
    was_s, is_s = base.budget.known_like(new.budget), new.budget.known_like(base.budget)
    lost = {
        part.name: 100
        * (was_s[part.field] / base.budget.measured_s - is_s[part.field] / new.budget.measured_s)
        for part in PARTS
        if part.field in was_s
    }
    told = _largest(lost, points)
    return [f"{line}; {told}" if told else line]


def explain_step(base: Row, new: Row) -> list[str]:
    """Say which parts of the step its additional time is in."""
    if base.step_s is None or new.step_s is None or base.budget is None or new.budget is None:
        return []
    moved = {"the same work on one process": new.budget.ideal_s - base.budget.ideal_s}
    was_s, is_s = base.budget.known_like(new.budget), new.budget.known_like(base.budget)
    for part in PARTS:
        if part.field in was_s:
            moved[part.name] = is_s[part.field] - was_s[part.field]
    total = new.step_s.value - base.step_s.value
    if not total:
        return []
    named = _same_way(moved, total)
    if not named:
        return []
    parts = ", ".join(f"{units.seconds(abs(value))} in {phrase}" for phrase, value in named)
    word = "longer" if total > 0 else "shorter"
    return [f"the step is {units.seconds(abs(total))} {word}: {parts}"]


def explain_exact(base: Row, new: Row) -> list[str]:
    """Say how the communication of a step changed."""
    lines = []
    ours, theirs = collective_counts(base), collective_counts(new)
    for kind in sorted({*ours, *theirs}):
        was, is_ = ours.get(kind, 0.0), theirs.get(kind, 0.0)
        if was != is_:
            name = kind.replace("_", "-")
            lines.append(f"{name} count per step went from {was:g} to {is_:g}")
    sent = (base.wire_bytes, new.wire_bytes)
    if sent[0] is not None and sent[1] is not None and sent[0] != sent[1]:
        before, now = units.bytes_(sent[0]), units.bytes_(sent[1])
        lines.append(f"each rank sends {now} per step, before {before}")
    return lines


def explain_settings(mismatches: Sequence[Mismatch]) -> list[str]:
    """Say what of the row's specification is different."""
    return [
        f"{m.name} went from {m.base or 'nothing'} to {m.new or 'nothing'}"
        for m in mismatches
        if m.where
    ]


def explain_baseline(base_s: float | None, new_s: float | None) -> list[str]:
    """Say that the one-process step changed, by which every efficiency is divided.

    Args:
        base_s: Step of the plain model in one process, in the baseline.
        new_s: The same in the new run.
    """
    if not base_s or not new_s or abs(new_s / base_s - 1) < 0.01:
        return []
    word = "slower" if new_s > base_s else "faster"
    return [
        f"the plain model in one process is {abs(new_s / base_s - 1) * 100:.1f} % {word}, "
        "and efficiency is measured against it"
    ]


def _largest(moved: Mapping[str, float], total: float) -> str:
    """Return the parts that explain most of a change in points."""
    named = _same_way(moved, total)
    if not named:
        return ""
    (first, points), *rest = named
    head = f"{agreeing(first, 'explains')} {abs(points):.1f} of them"
    return ", ".join([head, *(f"{name} {abs(value):.1f}" for name, value in rest)])


def _same_way(moved: Mapping[str, float], total: float) -> list[tuple[str, float]]:
    """Return up to three parts that go the way of the whole, the largest first."""
    along = [(name, value) for name, value in moved.items() if value * total > 0]
    told = [(name, value) for name, value in along if abs(value) >= TELLING * abs(total)]
    return sorted(told, key=lambda part: -abs(part[1]))[:3]
