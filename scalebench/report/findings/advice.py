"""What to do about a case: the first rule that has a number to go by.

See `scalebench.report.findings.advice_rules`.
"""

from collections.abc import Sequence

from scalebench.records.summary import Row
from scalebench.report.findings.advice_case import Advice, AdviceInput, Rule
from scalebench.report.findings.advice_rules import FIRST, LAST, RULES
from scalebench.report.words import wording


def advise(row: Row, of_suite: Sequence[Row] = ()) -> Advice | None:
    """Say what to do about a case; None: no rule has a number to go by."""
    case = AdviceInput(row, of_suite)
    if wording.is_baseline(row) or row.world_size == 1 or row.efficiency is None:
        return None
    for rule in _in_order(case):
        said = rule.says(case)
        if said is not None:
            return said
    return None


def _in_order(case: AdviceInput) -> list[Rule]:
    about = [rule for part in case.losses for rule in RULES if rule.about == part.key]
    return [*FIRST, *about, *([] if case.losses else LAST)]
