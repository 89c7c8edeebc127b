"""Where a change comes from, told by two loss budgets."""

import pytest

from scalebench.gate.comparison import (
    explain_baseline,
    explain_efficiency,
    explain_exact,
    explain_step,
)
from tests.builders.gated import budget_points, collectives
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


def with_step(row, seconds):
    return row.model_copy(update={"step_s": row.step_s.model_copy(update={"value": seconds})})


def test_points_lost_are_told_with_the_parts_that_took_them():
    """A tenth of the change is named, less is not."""
    old = with_budget(0.90, other_idle=0.10)
    new = with_budget(0.80, exposed_transfer=0.06, wait=0.03, copies=0.005, other_idle=0.105)
    (line,) = explain_efficiency(old, new)
    assert line == (
        "efficiency at N=2 fell 10.0 points, from 90.0 % to 80.0 %; "
        "transfer explains 6.0 of them, waiting 3.0"
    )
    (back,) = explain_efficiency(new, old)
    assert back.startswith("efficiency at N=2 rose 10.0 points, from 80.0 % to 90.0 %; transfer")


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


def test_a_step_is_longer_by_the_same_work_and_by_parts():
    """Of 10 ms: 8 ms of work become 8.5 ms of 10.6 ms."""
    old = with_budget(0.80, wait=0.20)
    new = with_budget(0.85, wait=0.15)
    new = with_step(new, 0.0104)
    (line,) = explain_step(old, new)
    assert line == "the step is 400 µs longer: 500 µs in the same work on one process"
    (back,) = explain_step(with_step(old, 0.0100), with_step(new, 0.0096))
    assert back == "the step is 400 µs shorter: 500 µs in waiting"
    assert explain_step(old, with_step(new, 0.010)) == []


def test_counts_and_bytes_of_communication():
    def sends(count, wire, kind="all_reduce"):
        row = make_row()
        return row.model_copy(
            update={"communication": [collectives(count, kind)], "wire_bytes": wire}
        )

    assert explain_exact(sends(2, 1000), sends(3, 1000)) == [
        "all-reduce count per step went from 2 to 3"
    ]
    assert explain_exact(sends(2, 1000), sends(2, 3000, "broadcast")) == [
        "all-reduce count per step went from 2 to 0",
        "broadcast count per step went from 0 to 2",
        "each rank sends 3.00 kB per step, before 1.00 kB",
    ]
    assert explain_exact(sends(2, 1000), sends(2, 1000)) == []
    assert explain_exact(sends(2, None), sends(2, 1000)) == []
    assert explain_exact(sends(2, 1000), sends(2, None)) == []


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
