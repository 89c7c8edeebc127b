"""What to do about a case: the first rule that has a number to go by.

See `scalebench.report.advice_rules`.
"""

from collections.abc import Sequence

from scalebench.report import wording
from scalebench.report.advice_case import Case, Rule
from scalebench.report.advice_rules import FIRST, LAST, RULES
from scalebench.summary import Row


def advise(row: Row, of_suite: Sequence[Row] = ()) -> str | None:
    """Say what to do about a case; None: no rule has a number to go by."""
    case = Case(row, of_suite)
    if wording.is_baseline(row) or row.world_size == 1 or row.efficiency is None:
        return None
    for rule in _in_order(case):
        said = rule.says(case)
        if said is not None:
            return said
    return None


def _in_order(case: Case) -> list[Rule]:
    about = [rule for part in case.losses for rule in RULES if rule.about == part.key]
    return [*FIRST, *about, *([] if case.losses else LAST)]
