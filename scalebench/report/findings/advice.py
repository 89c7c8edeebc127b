"""What to do about a case: what is certain of it, or the first rule that has a number to go by.

See `scalebench.report.findings.certain` and `scalebench.report.findings.advice_rules`.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from scalebench.records.rows.budget import Part
from scalebench.records.summary import Row
from scalebench.report.findings.advice_rules import (
    FIRST,
    INVALID,
    LAST,
    LEAST_LOSS,
    RULES,
    TOO_WIDE,
    Advice,
    AdviceInput,
    Loss,
    Rule,
)
from scalebench.report.findings.certain import certain
from scalebench.report.words import causes, wording


def advise(row: Row, of_suite: Sequence[Row] = ()) -> Advice | None:
    """Say what to do about a case; None: nothing has a number to go by."""
    first = first_loss(row, of_suite)
    if first is not None:
        return first.advice
    case = AdviceInput(row, of_suite)
    if not _can_gain(row):
        return None
    return _first(FIRST, case) or (None if case.losses else _first(LAST, case))


def first_loss(row: Row, of_suite: Sequence[Row] = ()) -> Loss | None:
    """Return the loss to act on first; None: something else is to be done first.

    One of less than 1 % of the step is none.
    """
    found = losses(row, of_suite)
    if not found or not row.step_s:
        return None
    return None if found[0].taken_s.value < LEAST_LOSS * row.step_s.value else found[0]


def losses(row: Row, of_suite: Sequence[Row] = ()) -> list[Loss]:
    """Return each loss of a case that has advice: those that are certain, then the likely ones.

    What is certain at any noise, and the parts of the loss budget that it does not explain. A part
    that is certain stands behind a larger one that is only likely; none stands behind a larger one
    that nothing is known of, and none is told where there is something else to do first: `FIRST`.
    """
    case = AdviceInput(row, of_suite)
    can_gain = _can_gain(row)
    if can_gain and _first(INVALID, case):
        return []
    sure = certain(row, of_suite)
    parts = _parts(case, {one.about for one in sure}) if can_gain else []
    known = list(takewhile(case.is_certain, parts))
    found = sorted([*sure, *_advised(case, known)], key=lambda loss: -loss.taken_s.value)
    return [*found, *_advised(case, parts[len(known) :])]


def _can_gain(row: Row) -> bool:
    return not wording.is_baseline(row) and row.world_size > 1 and row.efficiency is not None


def _parts(case: AdviceInput, explained: set[str | None]) -> list[Part]:
    """Return the parts that are worth a change; where the efficiency is vague, certain ones."""
    if _first([rule for rule in FIRST if rule is not TOO_WIDE], case):
        return []
    parts = [part for part in case.losses if part.key not in explained]
    vague = _first([TOO_WIDE], case) is not None
    return list(takewhile(case.is_certain, parts)) if vague else parts


def _advised(case: AdviceInput, parts: Sequence[Part]) -> list[Loss]:
    found = []
    for part in parts:
        told = _first([rule for rule in RULES if rule.about == part.key], case)
        taken_s = case.budget.estimates.get(part.field) if case.budget else None
        if told is not None and taken_s is not None and case.budget:
            if not case.is_certain(part):
                action = f"Probably, not certain: {told.action}"
                brief = f"Probably: {told.next_step}"
                told = replace(told, action=action, in_brief=brief)
            found.append(Loss(causes.name(part, case.budget), taken_s, told))
    return found


def _first(rules: Sequence[Rule], case: AdviceInput) -> Advice | None:
    return next((said for rule in rules if (said := rule.says(case)) is not None), None)
