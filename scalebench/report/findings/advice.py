"""What to do about a case: what is certain of it, or the first rule that has a number to go by.

See `scalebench.report.findings.certain` and `scalebench.report.findings.advice_rules`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scalebench.records.summary import Row
from scalebench.report.findings.advice_case import LEAST_LOSS, Advice, AdviceInput, Rule
from scalebench.report.findings.advice_rules import DOUBTS, FIRST, INVALID, LAST, RULES
from scalebench.report.findings.certain import certain
from scalebench.report.words import causes, wording
from scalebench.stats import Estimate


@dataclass(frozen=True)
class Loss:
    """Something that takes time, and what to do about it.

    Attributes:
        cause: What takes it, a few words.
        taken_s: Of a step, at most.
        sentence: What is certain of it at any noise; None: the loss budget tells it.
    """

    cause: str
    taken_s: Estimate
    advice: Advice
    sentence: str | None = None


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
    """Return the largest loss that is worth a change; None: something else is to be done first.

    One of less than 1 % of the step is, if nothing is known beyond doubt.
    """
    found = losses(row, of_suite)
    if not found or not row.step_s:
        return None
    case = AdviceInput(row, of_suite)
    small = found[0].taken_s.value < LEAST_LOSS * row.step_s.value
    settled = _can_gain(row) and _first(FIRST, case) and not _first(DOUBTS, case)
    return None if small and settled else found[0]


def losses(row: Row, of_suite: Sequence[Row] = ()) -> list[Loss]:
    """Return each loss of a case that is significant and has advice, the largest first.

    What is certain at any noise, and the parts of the loss budget that it does not explain; of
    these none where there is something else to do first, or nothing to gain: see `FIRST`.
    """
    case = AdviceInput(row, of_suite)
    can_gain = _can_gain(row)
    if can_gain and _first(INVALID, case):
        return []
    sure = certain(row)
    found = [
        Loss(one.cause, Estimate(value=one.seconds, n=1), one.advice, one.sentence) for one in sure
    ]
    if can_gain and not _first(FIRST, case):
        found += _of_budget(case, {one.about for one in sure})
    return sorted(found, key=lambda loss: -loss.taken_s.value)


def _can_gain(row: Row) -> bool:
    return not wording.is_baseline(row) and row.world_size > 1 and row.efficiency is not None


def _of_budget(case: AdviceInput, explained: set[str | None]) -> list[Loss]:
    found = []
    for part in case.losses:
        told = _first([rule for rule in RULES if rule.about == part.key], case)
        taken_s = case.budget.estimates.get(part.field) if case.budget else None
        if told is not None and taken_s is not None and case.budget and part.key not in explained:
            found.append(Loss(causes.name(part, case.budget), taken_s, told))
    return found


def _first(rules: Sequence[Rule], case: AdviceInput) -> Advice | None:
    return next((said for rule in rules if (said := rule.says(case)) is not None), None)
