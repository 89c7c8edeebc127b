"""What to do about a case: the first rule that has a number to go by.

See `scalebench.report.findings.advice_rules`.
"""

from collections.abc import Sequence

from scalebench.records.rows.budget import Part
from scalebench.records.summary import Row
from scalebench.report.findings.advice_case import Advice, AdviceInput, Rule
from scalebench.report.findings.advice_rules import FIRST, LAST, RULES
from scalebench.report.words import wording


def advise(row: Row, of_suite: Sequence[Row] = ()) -> Advice | None:
    """Say what to do about a case; None: no rule has a number to go by."""
    case = AdviceInput(row, of_suite)
    if not _can_gain(row):
        return None
    about_losses = (said for _, said in _about_losses(case))
    return _first(FIRST, case) or next(about_losses, None) or _about_no_loss(case)


def advise_by_loss(row: Row, of_suite: Sequence[Row] = ()) -> list[tuple[Part, Advice]]:
    """Return what to do about each significant loss of a case, the largest loss first.

    Empty where there is something else to do first, or nothing to gain: see `FIRST`.
    """
    case = AdviceInput(row, of_suite)
    if not _can_gain(row) or _first(FIRST, case) is not None:
        return []
    return _about_losses(case)


def _can_gain(row: Row) -> bool:
    return not wording.is_baseline(row) and row.world_size > 1 and row.efficiency is not None


def _about_losses(case: AdviceInput) -> list[tuple[Part, Advice]]:
    said = [
        (part, _first([rule for rule in RULES if rule.about == part.key], case))
        for part in case.losses
    ]
    return [(part, advice) for part, advice in said if advice is not None]


def _about_no_loss(case: AdviceInput) -> Advice | None:
    return None if case.losses else _first(LAST, case)


def _first(rules: Sequence[Rule], case: AdviceInput) -> Advice | None:
    return next((said for rule in rules if (said := rule.says(case)) is not None), None)
