import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.records.rows.budget import MEASURED, PARTS, RESIDUAL, Budget
from scalebench.records.rows.communication import Straggler
from scalebench.records.rows.exposed import ExposedEstimates
from scalebench.records.summary import Row
from scalebench.report import render_table
from scalebench.report.page import palette
from scalebench.report.tables import budget_table
from scalebench.report.tables.layout import cells
from scalebench.report.words import causes, wording
from scalebench.report.words.attributed import budgeted, held_up, straggler
from tests.builders.summaries import (
    LOSSES,
    attributed,
    estimate,
    make_plain,
    make_row,
    make_summary,
)


def traced(efficiency=0.85, **changes):
    return attributed(make_row(efficiency=efficiency), **changes)


def read_with(row, **changes):
    """The row as it is read from a file in which some fields are different."""
    return Row.model_validate_json(json.dumps({**row.model_dump(mode="json"), **changes}))


def said(row):
    return " ".join(causes.causes(row))


def test_every_part_of_a_budget_has_its_words_and_its_colour():
    fields = list(Budget.model_fields)
    parts = fields[fields.index("ideal_s") + 1 : fields.index("measured_s")]
    assert [part.field for part in PARTS] == parts == [f"{part.key}_s" for part in PARTS]
    assert list(palette.PART_COLORS) == [part.key for part in PARTS]
    assert PARTS[-1] is RESIDUAL and (*MEASURED, RESIDUAL) == PARTS


def test_the_verdict_names_the_largest_parts_first_and_what_gives_back():
    assert said(traced()) == (
        "Of the 15.0 % lost, waiting takes 9.4, transfer 5.4 and"
        " idle 4.1; faster computation gives back 3.9."
    )


def test_a_part_whose_interval_holds_zero_is_no_cause():
    text = said(traced(doubtful=["wait", "compute_inflation"]))
    cause, _, doubt = text.partition("Uncertain")
    assert cause == "Of the 15.0 % lost, transfer takes 5.4 and idle 4.1. "
    assert doubt.endswith("waiting 9.4 and faster computation −3.9.")


def test_without_any_certain_part_the_verdict_is_inconclusive():
    assert "15.0 % is lost. The measurement is too noisy to say where" in said(
        traced(doubtful=LOSSES)
    )
    assert "15.0 % is lost. One launch cannot say where" in said(traced(n=1))


def test_a_gap_that_may_be_none_is_said_to_be_doubtful():
    row = attributed(make_row(efficiency=0.85, spread=0.3))
    assert "Of the 15.0 % lost (uncertain, may be nothing), waiting" in said(row)


def test_a_budget_that_does_not_close_names_no_cause():
    row = traced(losses={"wait": 10.0})
    assert "do not add up, they leave 5.0 % of the step unexplained" in said(row)
    assert "waiting" not in said(row)
    assert "add up to 3.0 % more than the step" in said(traced(losses={"wait": 18.0}))


def test_a_row_without_a_budget_says_why_if_it_was_traced():
    row = traced().model_copy(update={"budget": None, "unavailable": {"budget": "plain failed"}})
    assert said(row) == "No cause is named for what is missing to ideal: plain failed."
    assert said(make_row()) == ""
    assert said(attributed(make_plain())) == ""


def test_parts_that_could_not_be_told_apart_are_no_causes():
    reason = "the ranks' operations could not be matched: in traced step 3"
    row = traced(wait_s=None, exposed_transfer_s=None, unavailable={"wait_s": reason})
    assert said(row).startswith("Of the 15.0 % lost, idle takes 4.1;")
    assert causes.doubts(row) == [f"Waiting and transfer are not separated: {reason}."]


def estimates(trace_s, difference_s):
    return ExposedEstimates(
        trace=estimate(trace_s),
        differential=estimate(difference_s),
        disagree=[["trace", "differential"]],
    )


def test_estimates_disagree_only_where_it_matters():
    far = traced(exposed_comm_estimates=estimates(2.1e-3, 0.4e-3))
    assert causes.doubts(far) == [
        "Trace and difference disagree about exposed communication: 2.10 ms against 400 µs."
    ]
    near = traced(exposed_comm_estimates=estimates(21e-6, 4e-6))
    assert causes.doubts(near) == []


def arrivals(share, late_s, count=40):
    return [
        Straggler(rank=3, count=round(share * count), share=share, median_late_s=late_s,
                  longest_run=5),
        Straggler(rank=0, count=round((1 - share) * count), share=1 - share,
                  median_late_s=0.0, longest_run=1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("world_size", "share", "late", "count", "named"),
    [
        (4, 0.97, 0.03, 40, True),
        (4, 0.61, 0.03, 40, True),
        (4, 0.55, 0.03, 40, False),
        (2, 0.70, 0.03, 40, False),
        (4, 0.97, 0.005, 40, False),
        (4, 1.0, 0.03, 4, False),
        (4, 1.0, 0.11, 4, True),
        (4, 0.9, 0.11, 9, False),
        (4, 1.0, 0.11, 3, False),
        (1, 1.0, 0.03, 40, False),
    ],
)
def test_a_rank_is_named_only_if_it_is_late_often_and_by_much(
    world_size, share, late, count, named
):
    row = attributed(make_row(world_size=world_size))
    found = arrivals(share, late * row.step_s.value, count)
    row = row.model_copy(update={"stragglers": found})
    assert (straggler(row) is not None) is named
    if named:
        often = "all 4" if count == 4 else f"{share * 100:.0f} % of"
        text = f"Rank 3 is the slow one (last to enter {often} operations, "
        assert held_up(row)[0].startswith(text)


def test_what_is_not_a_budget_counts_as_none():
    budget = traced().budget.model_dump(mode="json")
    for nonsense in ({"ideal_s": "<b>"}, {}, {**budget, "measured_s": 0.0}, {"a": 1}, [1], 5):
        row = read_with(traced(), budget=nonsense)
        assert row.budget is None and said(row) == ""
        assert render_table(make_summary([row]), verbose=True)


shares = st.floats(-80, 80).map(lambda value: round(value, 3))


@given(st.fixed_dictionaries({part.key: shares for part in PARTS[:-1]}), st.floats(0.05, 2.0))
def test_the_written_row_sums_to_the_whole_step(losses, efficiency):
    row = attributed(make_row(efficiency=efficiency), losses=losses)
    accounted = budgeted([row])
    _, _, *numbers = cells(budget_table.columns_of(accounted), accounted[0])
    written = [
        float(n.replace(wording.MINUS, "-").strip("?")) for n in numbers if n not in ("", "open")
    ]
    assert sum(written) == pytest.approx(100.0, abs=0.05 * len(PARTS) + 0.06)


def second_table(text):
    return text[text.index(budget_table.TITLE) :].partition("\nverdict on suite ")[0]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_the_table_fits_and_still_sums(width, ascii_only):
    many = {part.key: 2.0 for part in PARTS[:-1]}
    rows = [attributed(make_row("c" * 30, 2, efficiency=0.85), losses=many)]
    text = second_table(
        render_table(make_summary(rows), width, ascii_only=ascii_only, verbose=True)
    )
    assert max(map(len, text.splitlines())) <= width
    (line,) = [line for line in text.splitlines() if "85.0" in line]
    numbers = [float(n) for n in re.findall(r"-?\d+\.\d", line.replace("−", "-"))]
    assert sum(numbers) == pytest.approx(100.0, abs=0.25)
    assert ("rest: " in text) == (width < 120)
    assert text.isascii() or not ascii_only
