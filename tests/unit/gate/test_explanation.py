"""Where a change comes from, told by two loss budgets."""

import pytest

from scalebench.gate.explanation import explain_efficiency, explain_step
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
    """Version 0.1 had the 3 points of copies in its 13 of other idle time; 5 of transfer are
    new."""
    old = with_budget(0.87, copies_known=False, other_idle=0.13)
    new = with_budget(0.82, copies=0.03, other_idle=0.10, exposed_transfer=0.05)
    (line,) = explain_efficiency(old, new)
    assert "exposed transfer explains 5.0 of them" in line
    assert "copying" not in line and "idle" not in line
    (back,) = explain_efficiency(new, old)
    assert "copying" not in back and "idle" not in back


def test_copies_that_both_sides_know_are_named():
    old = with_budget(0.87, other_idle=0.13)
    new = with_budget(0.82, copies=0.05, other_idle=0.13)
    (line,) = explain_efficiency(old, new)
    assert "copying explains 5.0 of them" in line


@pytest.mark.parametrize("held", ["copies", "wait"])
def test_a_part_that_one_side_alone_knows_is_put_to_the_part_that_holds_it(held):
    budget = budget_points(0.8, copies=0.03, wait=0.04, exposed_transfer=0.05, other_idle=0.08)
    without = budget.model_copy(update={f"{held}_s": None})
    found = budget.known_like(without)
    assert f"{held}_s" not in found and f"{held}_s" not in without.known_like(budget)
    holder = {"copies": "other_idle_s", "wait": "exposed_transfer_s"}[held]
    assert found[holder] == pytest.approx({"copies": 0.0011, "wait": 0.0009}[held])
    assert sum(found.values()) == pytest.approx(0.002)


def test_the_step_is_told_by_the_same_parts():
    old = with_budget(0.87, copies_known=False, other_idle=0.13)
    new = with_budget(0.82, copies=0.03, other_idle=0.10, exposed_transfer=0.05)
    slower = new.step_s.model_copy(update={"value": 0.0105})
    (line,) = explain_step(old, new.model_copy(update={"step_s": slower}))
    assert line == "the step is 500 µs longer: 500 µs in exposed transfer"
