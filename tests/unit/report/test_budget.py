import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench import units
from scalebench.records.rows.budget import MEASURED, PARTS, RESIDUAL, Budget
from scalebench.records.rows.communication import Straggler
from scalebench.records.rows.exposed import ExposedEstimates
from scalebench.records.summary import Row
from scalebench.report import render_table
from scalebench.report.page import budget_figure, palette
from scalebench.report.tables import budget_table
from scalebench.report.tables.layout import Column, cells
from scalebench.report.tables.listing import PlainTable
from scalebench.report.words import causes, wording
from scalebench.report.words.attributed import budgeted, held_up, reasons, straggler
from tests.builders.summaries import (
    LOSSES,
    attributed,
    estimate,
    make_plain,
    make_row,
    make_summary,
    merged_budget,
    traced_rows,
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


def test_a_budget_of_version_0_1_has_no_copies_and_still_sums():
    row = traced()
    old = row.budget.model_dump(mode="json")
    del old["copies_s"], old["points"]["copies"], old["estimates"]["copies_s"]
    budget = read_with(row, budget=old).budget
    copies = next(part for part in PARTS if part.key == "copies")
    assert not budget.knows(copies) and budget.share(copies) == 0.0
    assert budget.ideal + sum(budget.share(part) for part in PARTS) == pytest.approx(1.0)
    assert said(read_with(row, budget=old)) == said(row)
    old_beside_new = [
        read_with(row, budget=old),
        attributed(make_row("ddp-1mb", efficiency=0.85), losses={**LOSSES, "copies": 3.0}),
    ]
    waterfall = budget_figure.waterfall_figure(old_beside_new, {})
    assert "copies<br><b>with idle</b>" in waterfall.layout.yaxis.ticktext
    dashes = [f for f in budget_figure.lines(old_beside_new) if f[1] == "copies"]
    assert dashes[0][2:] == ("–", "–", "–")


def test_parts_that_could_not_be_told_apart_are_no_causes():
    reason = "the ranks' operations could not be matched: in traced step 3"
    row = traced(wait_s=None, exposed_transfer_s=None, unavailable={"wait_s": reason})
    assert said(row).startswith("Of the 15.0 % lost, idle takes 4.1;")
    assert causes.doubts(row) == [f"Waiting and transfer are not separated: {reason}."]


JUMPED = "the clock of rank 1 or of rank 0 jumped: at 3 s by 2 ms"


def together():
    """Transfer 5.4 and wait 9.4 points of the step, with one number for both."""
    return merged_budget(traced(), JUMPED)


def test_transfer_and_wait_together_are_one_cause():
    assert said(together()).startswith(
        "Of the 15.0 % lost, transfer including waiting takes 14.8 and idle 4.1;"
    )
    assert budget_figure.conclude([together()]) == (
        "The largest certain loss is transfer including waiting: 14.8 % of the step of"
        " ddp-25mb on 2 CPU ranks."
    )


def test_a_long_table_says_how_many_lines_are_missing():
    columns = (Column("a", str),)
    table = PlainTable.of("t", "Note.", columns, range(250))
    assert len(table.lines) == 200
    assert table.note == "Note. 50 more are in summary.json."
    short = PlainTable.of("t", "Note.", columns, range(200))
    assert len(short.lines) == 200 and short.note == "Note."


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


def test_what_an_older_version_did_not_say_is_not_written_again():
    old = traced().budget.model_dump(mode="json", exclude={"skew", "drift"})
    row = read_with(traced(), budget=old)
    assert row.budget is not None and row.budget.drift == 0.0
    assert row.model_dump(mode="json")["budget"] == old


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


def test_the_table_marks_doubt_and_what_does_not_close():
    text = second_table(render_table(make_summary(traced_rows()), 120, verbose=True))
    lines = text.splitlines()
    wide = next(line for line in lines if "85.0" in line)
    assert re.search(r"2 +85\.0 +−3\.9 +5\.4 +9\.4\? +4\.1 +0\.0", wide)
    assert next(line for line in lines if " 95.0 " in line).endswith("5.0  open")
    assert "? uncertain, may be zero, or the parts of the row do not add up" in text
    assert "profiling made steps 14 % slower; the numbers above are corrected" in text
    assert "ddp-25mb, N=2: rank 1 is the slow one (last to enter 97 % of operations," in text


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


def test_the_figure_concludes_from_what_is_certain_and_closes():
    rows = traced_rows()
    assert budget_figure.conclude(rows) == (
        "The largest certain loss is waiting: 9.4 % of the step of ddp-1mb on 2 CPU ranks."
    )
    assert "transfer: 5.4 %" in budget_figure.conclude(rows[:3])
    doubtful, unexplained = traced(doubtful=LOSSES), traced(losses={"wait": 30.0})
    assert budget_figure.conclude([doubtful]) == "No large loss is certain."
    hardly = traced(losses={"data_stall": 0.5, "wait": 14.5}, doubtful=["wait"])
    assert budget_figure.conclude([hardly]) == "No large loss is certain."
    assert "where the parts add up" in budget_figure.conclude([doubtful, unexplained])
    assert "traced steps were unlike the others" in budget_figure.conclude([unexplained])
    assert budget_figure.budget_figure([make_row()], palette.assign([make_row()])) is None


SIMULATED = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                   [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                     [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                   [0.004733, 0.691367, 0.303900]],
}  # fmt: skip
"""Linear RGB as other eyes see it. Source: Machado, Oliveira & Fernandes 2009, severity 1."""


def lab(color, sight):
    """Return CIE L*a*b* (D65) of a colour as one kind of sight sees it."""
    rgb = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(SIMULATED[sight]) @ linear, 0, 1)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = to_xyz @ seen / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("sight", SIMULATED)
def test_neighbouring_parts_are_told_apart_by_every_sight(sight):
    colors = list(palette.PART_COLORS.values())
    assert not set(colors) & {*palette.COLORS, palette.NEUTRAL}
    seen = [lab(color, sight) for color in colors]
    apart = [np.linalg.norm(a - b) for i, a in enumerate(seen) for b in seen[i + 1 :]]
    assert min(apart) > 10


def late_for(**times):
    """A row whose rank 1 always comes last, with its own parts changed; seconds."""
    row = traced()
    waiting, late = row.budget.ranks
    own = late.model_copy(update={"wait_s": 0.0, **times})
    return row.model_copy(
        update={"budget": row.budget.model_copy(update={"ranks": [waiting, own]})}
    )


def test_a_late_rank_s_own_part_is_the_reason():
    row = traced()
    waiting, late = row.budget.ranks
    waited = waiting.wait_s
    more = late.data_stall_s + 0.9 * waited
    found = reasons(late_for(data_stall_s=more), 1)
    least = units.seconds(waiting.data_stall_s)
    (said,) = found.values()
    assert said == f"its data loading takes {units.seconds(more)} a step, on the others {least}"
    both = {"data_stall_s": late.data_stall_s + 0.3 * waited, "compute_s": 2 * late.compute_s}
    first, second = reasons(late_for(**both), 1).values()
    assert first.startswith("its data loading ") and second.startswith("its computation ")
    assert held_up(late_for(**both))[0].endswith(f": {first} and {second}.")
    little = late.data_stall_s + 0.2 * waited
    assert reasons(late_for(data_stall_s=little), 1) == {}
    assert reasons(late_for(data_stall_s=more, wait_s=waited), 1) == {}
    assert reasons(row.model_copy(update={"budget": None}), 1) == {}
    assert reasons(row, 7) == {}


def test_every_number_of_an_open_budget_is_marked_and_its_residual_is_not():
    row = traced(losses={"wait": 10.0, "other_idle": 0.5})
    accounted = budgeted([row])
    *parts, residual, _ = cells(budget_table.columns_of(accounted), accounted[0])[3:]
    assert parts == ["10.0?", "0.5?"] and residual == "4.5"
    assert budget_table.DOUBTFUL_OR_OPEN in budget_table.footnotes([row], accounted)
    closed = budgeted([traced()])
    assert not any("?" in text for text in cells(budget_table.columns_of(closed), closed[0]))
