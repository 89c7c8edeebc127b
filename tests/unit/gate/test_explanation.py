"""Where a change comes from, told by two loss budgets."""

import pytest

from scalebench.gate.comparison import (
    explain_baseline,
    explain_efficiency,
    explain_exact,
    explain_settings,
    explain_step,
)
from scalebench.gate.result import Mismatch
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


@pytest.mark.parametrize("held", ["copies", "wait"])
def test_a_part_that_one_side_alone_knows_is_put_to_the_part_that_holds_it(held):
    budget = budget_points(0.8, copies=0.03, wait=0.04, exposed_transfer=0.05, other_idle=0.08)
    without = budget.model_copy(update={f"{held}_s": None})
    found = budget.known_like(without)
    assert f"{held}_s" not in found and f"{held}_s" not in without.known_like(budget)
    holder = {"copies": "other_idle_s", "wait": "exposed_transfer_s"}[held]
    assert found[holder] == pytest.approx({"copies": 0.0011, "wait": 0.0009}[held])
    assert sum(found.values()) == pytest.approx(0.002)


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


def test_parts_that_go_the_other_way_explain_nothing():
    old = with_budget(0.85, exposed_transfer=0.15)
    new = with_budget(0.80, exposed_transfer=0.05, wait=0.15)
    (line,) = explain_efficiency(old, new)
    assert "explains 15.0 of them" in line and "transfer" not in line


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


def test_settings_of_the_row_and_not_of_the_whole_run():
    found = [Mismatch("bucket_mb", "25", "", "ddp, N=2"), Mismatch("torch", "2.12", "2.13")]
    assert explain_settings(found) == ["bucket_mb went from 25 to nothing"]
    assert explain_settings([Mismatch("order", "", "1f1b", "pp, N=2")]) == [
        "order went from nothing to 1f1b"
    ]


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


def test_a_change_that_no_part_explains():
    old, new = with_budget(0.8, wait=0.2), with_budget(0.8, wait=0.2)
    assert explain_step(old, with_step(new, 0.02)) == []
    lower = new.model_copy(update={"efficiency": new.efficiency.model_copy(update={"value": 0.7})})
    (line,) = explain_efficiency(old, lower)
    assert line == "efficiency at N=2 fell 10.0 points, from 80.0 % to 70.0 %"
    (same,) = explain_efficiency(old, new)
    assert same == "efficiency at N=2 rose 0.0 points, from 80.0 % to 80.0 %"
