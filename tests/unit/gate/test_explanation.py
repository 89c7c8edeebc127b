"""Where a change comes from, and where nothing tells."""

import pytest

from scalebench.gate.comparison import explain_baseline, explain_efficiency, explain_step
from tests.builders.gated import budget_points
from tests.builders.summaries import make_row


def with_budget(efficiency, copies_known=True, **points):
    budget = budget_points(efficiency, **points)
    if not copies_known:
        budget = budget.model_copy(update={"copies_s": None})
    row = make_row(efficiency=efficiency)
    step = row.step_s.model_copy(update={"value": 0.010})
    return row.model_copy(update={"budget": budget, "step_s": step})


def test_copies_that_only_one_side_knows_are_no_change():
    """Version 0.1 had the 3 points of copies in its 13 of idle; 5 of transfer are
    new."""
    old = with_budget(0.87, copies_known=False, other_idle=0.13)
    new = with_budget(0.82, copies=0.03, other_idle=0.10, exposed_transfer=0.05)
    (line,) = explain_efficiency(old, new)
    assert "transfer explains 5.0 of them" in line
    assert "copying" not in line and "idle" not in line
    (back,) = explain_efficiency(new, old)
    assert "copying" not in back and "idle" not in back


def test_a_side_without_a_budget_or_an_efficiency():
    row = with_budget(0.8, other_idle=0.2)
    bare = row.model_copy(update={"budget": None})
    for pair in ((row, bare), (bare, row)):
        (line,) = explain_efficiency(*pair)
        assert line.endswith("; the cause is not known, because one side has no loss budget")
        assert explain_step(*pair) == []
    none = row.model_copy(update={"efficiency": None, "step_s": None})
    for pair in ((row, none), (none, row)):
        assert explain_efficiency(*pair) == [] and explain_step(*pair) == []


@pytest.mark.parametrize(
    ("base_s", "new_s", "told"),
    [
        (0.1, 0.1009, ""),
        (0.1, 0.0991, ""),
        (0.1, 0.1011, "1.1 % slower"),
        (0.1, 0.09, "10.0 % faster"),
        (None, 0.1, ""),
        (0.1, None, ""),
        (0.0, 0.1, ""),
    ],
)
def test_the_plain_model_that_all_is_measured_against(base_s, new_s, told):
    found = explain_baseline(base_s, new_s)
    assert len(found) == bool(told) and all(told in line for line in found)
