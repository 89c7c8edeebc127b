import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.records.rows.budget import MEASURED, PARTS, RESIDUAL, Budget
from scalebench.records.rows.communication import Straggler
from scalebench.records.summary import Row
from scalebench.report import render_table
from scalebench.report.figures import style
from scalebench.report.tables import budget as budget_table
from scalebench.report.tables.layout import cells
from scalebench.report.words import causes, wording
from scalebench.report.words.causes import budgeted
from scalebench.report.words.late_ranks import held_up, straggler
from tests.builders.summaries import attributed, make_row, make_summary


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
    assert list(style.PART_COLORS) == [part.key for part in PARTS]
    assert PARTS[-1] is RESIDUAL and (*MEASURED, RESIDUAL) == PARTS


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
        (4, 0.97, 0.011, 40, True),
        (4, 0.61, 0.03, 40, True),
        (4, 0.55, 0.03, 40, False),
        (2, 0.70, 0.03, 40, False),
        (4, 0.97, 0.009, 40, False),
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
