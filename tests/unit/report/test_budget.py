import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plotly import graph_objects as go

from scalebench import units
from scalebench.records.rows.budget import MEASURED, PARTS, RESIDUAL, WAIT, Budget
from scalebench.records.rows.communication import Straggler
from scalebench.records.rows.exposed import ExposedEstimates
from scalebench.records.summary import Estimate, Row
from scalebench.report import render_markdown, render_page, render_table
from scalebench.report.export import frames
from scalebench.report.findings import findings
from scalebench.report.page import budget_figure, charts, kinds, palette, waterfall_figure
from scalebench.report.tables import budget_table, communication
from scalebench.report.tables.layout import Column, cells
from scalebench.report.tables.listing import PlainTable
from scalebench.report.words import causes, late_rank, wording
from scalebench.report.words.attributed import budgeted, straggler
from tests.builders.summaries import (
    LOSSES,
    attributed,
    estimate,
    hostile_summary,
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


def test_a_step_shorter_than_ideal_is_not_a_loss():
    row = traced(1.05, losses={"compute_inflation": -8.0, "wait": 3.0})
    assert said(row) == (
        "The ideal step would be 5.0 % longer: waiting takes 3.0; faster"
        " computation gives back 8.0."
    )


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


def test_copies_are_a_cause_a_column_and_a_bar():
    row = traced(losses={**LOSSES, "other_idle": 1.1, "copies": 3.0})
    assert "transfer 5.4, copies 3.0 and idle 1.1" in said(row)
    assert re.search(
        r"5\.4 +9\.4 +3\.0 +1\.1",
        second_table(render_table(make_summary([row]), 120, verbose=True)),
    )
    assert [line[2:5] for line in budget_figure.tabulate([row]) if line[2] == "copies"] == [
        ("copies", f"{0.03 * row.step_s.value * 1e3:.3f} ms", "3.0")
    ]
    assert "GPU memory while nothing else runs" in render_page([make_summary([make_plain(), row])])


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
    waterfall = waterfall_figure.waterfall_figure(old_beside_new, {})
    assert "copies<br><b>with idle</b>" in waterfall.layout.yaxis.ticktext
    dashes = [f for f in budget_figure.tabulate(old_beside_new) if f[2] == "copies"]
    assert dashes[0][3:] == ("–", "–", "–")


def test_parts_that_could_not_be_told_apart_are_no_causes():
    reason = "the ranks' operations could not be matched: in traced step 3"
    row = traced(wait_s=None, exposed_transfer_s=None, unavailable={"wait_s": reason})
    assert said(row).startswith("Of the 15.0 % lost, idle takes 4.1;")
    assert causes.doubts(row) == [f"Waiting and transfer are not separated: {reason}."]


JUMPED = "the clock of rank 1 or of rank 0 jumped: at 3 s by 2 ms"


def together():
    """Transfer 5.4 and wait 9.4 points of the step, with one number for both."""
    return merged_budget(traced(), JUMPED)


def test_a_budget_without_wait_is_read_and_still_sums():
    budget = together().budget
    assert budget.wait_s is None and budget.not_apart == JUMPED
    assert budget.share(WAIT) == 0.0 and not budget.knows(WAIT)
    assert budget.ideal + sum(budget.share(part) for part in PARTS) == pytest.approx(1.0)


def test_transfer_and_wait_together_are_one_cause():
    assert said(together()).startswith(
        "Of the 15.0 % lost, transfer including waiting takes 14.8 and idle 4.1;"
    )
    assert budget_figure.conclude([together()]) == (
        "The largest certain loss is transfer including waiting: 14.8 % of the step of"
        " ddp-25mb on 2 CPU ranks."
    )


def test_where_wait_is_in_transfer_its_cell_is_a_dash_and_a_line_says_why():
    rows = [together(), attributed(make_row("ddp-1mb", 2, efficiency=0.85))]
    text = second_table(render_table(make_summary(rows), 120, verbose=True))
    line = next(line for line in text.splitlines() if line.startswith("ddp-25mb  "))
    assert re.search(r"2 +85\.0 +−3\.9 +14\.8 +– +4\.1", line)
    assert f"– transfer includes waiting, ddp-25mb, N=2: {JUMPED}" in text
    assert "transfer includes waiting" not in second_table(
        render_table(make_summary(rows[1:]), 120, verbose=True)
    )
    waits = [line for line in budget_figure.tabulate(rows) if line[2] == "waiting"]
    assert waits[0][3:] == ("–", "–", "–") and waits[1][4] == "9.4"
    assert f"{JUMPED}." in budget_figure.remarks(rows)[0]
    assert "Transfer includes waiting, ddp-25mb, N=2: the clock" in escaped_text(rows)


def escaped_text(rows):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", render_page([make_summary(rows)])))


def bounded(seconds):
    row = traced()
    return row.model_copy(
        update={"budget": row.budget.model_copy(update={"clock_bound_s": seconds})}
    )


def test_waits_between_hosts_are_said_to_be_as_certain_as_the_clocks():
    rows = [bounded(12e-6), bounded(45e-6)]
    line = "aits are certain to ± 45.0 µs: the hosts' clocks were aligned by messages"
    assert f"w{line}" in render_table(make_summary(rows), 120, verbose=True)
    assert budget_figure.remarks(rows) == [f"W{line}."]
    assert "waits are certain" not in render_table(make_summary([bounded(0.0)]), 120, verbose=True)
    assert budget_figure.remarks([bounded(0.0)]) == []
    assert "Waits are certain to ± 45.0 µs" in escaped_text(rows)


def test_a_clock_bound_says_nothing_where_no_wait_is_known():
    row = together()
    row = row.model_copy(update={"budget": row.budget.model_copy(update={"clock_bound_s": 1e-3})})
    assert causes.clock_bound(budgeted([row])) is None


def test_every_rank_is_listed_with_its_step():
    (table,) = [t for t in communication.rank_tables([traced()]) if t.title == "Every rank"]
    assert table.folded
    assert table.lines == (
        ("ddp-25mb", "2", "rank 0", "21.2 ms", "12.7 ms", "6.35 ms", "6.35 ms", "4.24 ms",
         "212 µs", "1.91 ms"),
        ("ddp-25mb", "2", "rank 1", "21.2 ms", "12.7 ms", "6.35 ms", "6.35 ms", "3.81 ms",
         "212 µs", "1.91 ms"),
    )  # fmt: skip
    (table,) = [t for t in communication.rank_tables([together()]) if t.title == "Every rank"]
    assert {line[7] for line in table.lines} == {"–"}


def test_what_is_no_list_of_ranks_is_not_shown():
    for nonsense in ("<b>", [{"rank": "<b>"}], None, 3):
        budget = traced().budget.model_dump(mode="json")
        row = read_with(traced(), budget={**budget, "ranks": nonsense})
        assert row.budget is not None and not row.budget.ranks
        assert "Every rank" not in [table.title for table in communication.tables([row])]


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
        text = f"Rank 3 is the slow one (last in {often} operations, "
        assert late_rank.held_up(row)[0].startswith(text)


def test_what_is_not_a_budget_counts_as_none():
    budget = traced().budget.model_dump(mode="json")
    for nonsense in ({"ideal_s": "<b>"}, {}, {**budget, "measured_s": 0.0}, {"a": 1}, [1], 5):
        row = read_with(traced(), budget=nonsense)
        assert row.budget is None and said(row) == ""
        assert render_table(make_summary([row]), verbose=True)


def test_what_a_newer_version_adds_to_a_budget_does_no_harm():
    row = read_with(traced(), budget={**traced().budget.model_dump(mode="json"), "novel": {"a": 1}})
    assert row.budget == traced().budget


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


def test_the_table_leaves_out_what_is_nothing_in_every_row():
    text = second_table(render_table(make_summary(traced_rows()), 120, verbose=True))
    header = " ".join(text.splitlines()[1:3])
    for name in ("slower", "transfer", "waiting", "idle", "unknown", "ideal"):
        assert name in header
    assert "bubble" not in header and "encoding" not in header and "data" not in header
    assert not re.search(r"^plain", text, re.M)


def test_the_table_marks_doubt_and_what_does_not_close():
    text = second_table(render_table(make_summary(traced_rows()), 120, verbose=True))
    lines = text.splitlines()
    wide = next(line for line in lines if "85.0" in line)
    assert re.search(r"2 +85\.0 +−3\.9 +5\.4 +9\.4\? +4\.1 +0\.0", wide)
    assert next(line for line in lines if " 95.0 " in line).endswith("5.0  open")
    assert "? uncertain, may be zero, or the parts of the row do not add up" in text
    assert "profiling made steps 14 % slower; the numbers above are corrected" in text
    assert "ddp-25mb, N=2: rank 1 is the slow one (last in 97 % of operations," in text


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


def test_without_traces_there_is_no_second_table():
    summary = make_summary([make_row(unavailable={"budget": "tracing was turned off"})])
    assert budget_table.TITLE not in render_table(summary, verbose=True)
    assert "no cause of the lost time is known: tracing was turned off" in render_table(
        summary, verbose=True
    )
    assert "Where the lost time goes" not in render_markdown(make_summary())


def test_markdown_has_the_budget():
    text = render_markdown(make_summary(traced_rows()))
    assert "| case | N | ideal | slower computation | transfer | waiting |" in text
    assert "| ddp-25mb | 2 | 85.0 | −3.9 | 5.4 | 9.4? | 4.1 | 0.0 |" in text
    assert "? uncertain, may be zero, or the parts of the row do not add up<br>" in text


def bars(rows):
    figure = budget_figure.budget_figure(rows, palette.assign(rows))
    return figure, {trace.legendgroup: trace for trace in figure.data if isinstance(trace, go.Bar)}


def test_the_figure_draws_every_part_of_every_row():
    rows = traced_rows()
    figure, drawn = bars(rows)
    assert list(drawn["exposed_transfer"].x) == [0.0, 5.4, 0.0, 5.4]
    assert drawn["compute_inflation"].x[1] == pytest.approx(-3.9)
    assert list(drawn["wait"].marker.pattern.shape)[1::2] == ["/", ""]
    assert figure.layout.barmode == "relative"
    low, high = figure.layout.xaxis.range
    assert low < -3.9 and high > 18.9
    assert [text.strip() for text in figure.data[-1].text] == ["2.1", "15.0", "5.0 open", "15.0"]


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


def test_the_numbers_of_the_figure_sum_to_the_step():
    lines = budget_figure.tabulate([traced()])
    assert lines[0][2:5] == ("ideal", "18.000 ms", "85.0")
    assert lines[-1][2:4] == ("measured", "21.176 ms")
    total = sum(float(line[3].split()[0].replace("−", "-")) for line in lines[:-1])
    assert total == pytest.approx(21.176, abs=0.004)


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


def test_communication_lists_kinds_buckets_estimates_arrivals_and_cost():
    made = (*communication.tables(traced_rows()), *communication.rank_tables(traced_rows()))
    tables = {table.title: table for table in made}
    assert list(tables) == [
        "Operations", "Every bucket", "Exposed communication, three ways",
        "Volume, overlap, and what looking cost", "Who arrives last", "Every rank",
    ]  # fmt: skip
    kinds = [line for line in tables["Operations"].lines if line[:2] == ("ddp-25mb", "2")]
    assert kinds == [
        ("ddp-25mb", "2", "all_reduce", "backward", "2", "1.75 MB", "4.24 ms", "3.13 ms", "1.10 ms")
    ]
    buckets = [line[3] for line in tables["Every bucket"].lines if line[:2] == ("ddp-25mb", "2")]
    assert buckets == ["0", "1"]
    assert tables["Exposed communication, three ways"].lines[0][-1] == "agree"
    last = [line for line in tables["Who arrives last"].lines if line[0] == "ddp-25mb"]
    assert [line[1:4] for line in last] == [("2", "rank 1", "97 %"), ("2", "rank 0", "3 %")]
    cost = tables["Volume, overlap, and what looking cost"].lines[-1]
    assert cost[2:5] == ("1.75 MB", "1.75 MB", "1.75 MB")  # payload, wire, predicted
    assert cost[5:] == ("26.0 %", "25.0 %", "14.0 %", "0.1 %?")
    for table in tables.values():
        assert all(len(line) == len(table.header) for line in table.lines)
    assert communication.tables([make_row()]) == ()


def test_the_estimates_are_written_side_by_side_with_their_verdict():
    far = traced(exposed_comm_estimates=estimates(2.1e-3, 0.4e-3))
    (table,) = [t for t in communication.tables([far]) if "three ways" in t.title]
    assert table.lines[0][2:] == (
        "2.100 ms (2.037 to 2.163)", "400 µs (388 to 412)", "–", "disagree",
    )  # fmt: skip


def test_communication_concludes_with_what_is_hidden():
    assert communication.sentence(traced_rows()) == (
        "ddp-25mb hides 26.00 % of its communication behind computation on 2 CPU ranks, the most"
        " of all cases."
    )
    bare = traced(overlap_ratio=Estimate(value=0.0, low=0.0, high=0.0, n=3))
    assert "No communication is hidden" in communication.sentence([bare])


def test_the_page_shows_budget_and_communication():
    text = render_page([make_summary(traced_rows())])
    assert ">Where the lost time goes</h2>" in text and ">Communication</h2>" in text
    assert text.index("Where the lost time goes") < text.index(">Ranks and steps</h2>")
    for part in PARTS:
        shown = part.key not in ("bubble", "codec", "copies", "data_stall")
        assert (part.meaning.replace("'", "&#39;") in text) is shown
    assert ">Communication</h2>" not in render_page([make_summary()])


def test_the_key_names_the_trace_of_each_part():
    rows = traced_rows()
    chart = charts.make_chart(kinds.BUDGET, "x", rows, palette.assign(rows))
    drawn = json.loads(chart.spec)["data"]
    for entry in chart.key:
        assert drawn[int(entry.traces)]["name"] == entry.name
        assert drawn[int(entry.traces)]["marker"]["color"] == entry.color


def test_hostile_communication_is_text():
    text = render_page([hostile_summary()])
    outside = re.sub(r"<script.*?</script>", "", text, flags=re.S)
    assert "<img" not in outside and "&lt;img src=x onerror" in outside
    assert ">Communication</h2>" in text


def test_ranges_and_short_names_do_not_break():
    from scalebench.report.page.offline import _jointed, _tied

    assert _tied("87 (57–133) %") == '87 <span class="whole">(57–133)\N{NO-BREAK SPACE}%</span>'
    assert '<span class="whole">ddp-accumulate-4</span>:' in _tied("of ddp-accumulate-4: <b>")
    assert "<b>" not in _tied("<b>")
    assert _jointed("ddp-accumulate-4") == (
        '<span class="whole">ddp-</span><wbr><span class="whole">accumulate-4</span>'
    )
    assert "<b>" not in _jointed("a-<b>")


def test_nested_lists_are_json_in_the_csv():
    flat = frames.flatten(traced())
    assert json.loads(flat["communication"])[0]["kind"] == "all_reduce"
    assert json.loads(flat["stragglers"])[0]["rank"] == 1


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
    found = late_rank.reasons(late_for(data_stall_s=more), 1)
    least = units.seconds(waiting.data_stall_s)
    assert found == [f"its data loading takes {units.seconds(more)} a step, on the others {least}"]
    both = {"data_stall_s": late.data_stall_s + 0.3 * waited, "compute_s": 2 * late.compute_s}
    first, second = late_rank.reasons(late_for(**both), 1)
    assert first.startswith("its data loading ") and second.startswith("its computation ")
    assert late_rank.held_up(late_for(**both))[0].endswith(f": {first} and {second}.")
    little = late.data_stall_s + 0.2 * waited
    assert late_rank.reasons(late_for(data_stall_s=little), 1) == []
    assert late_rank.reasons(late_for(data_stall_s=more, wait_s=waited), 1) == []
    assert late_rank.reasons(row.model_copy(update={"budget": None}), 1) == []
    assert late_rank.reasons(row, 7) == []


def test_the_finding_carries_cause_straggler_and_doubt():
    row = traced(exposed_comm_estimates=estimates(2.1e-3, 0.4e-3))
    found = findings.judge_case([row])
    text = " ".join((found.verdict, *found.notes))
    for phrase in ("Of the 15.0 % lost", "Rank 1 is the slow one", "disagree about exposed"):
        assert phrase in text


def test_every_number_of_an_open_budget_is_marked_and_its_residual_is_not():
    row = traced(losses={"wait": 10.0, "other_idle": 0.5})
    accounted = budgeted([row])
    *parts, residual, _ = cells(budget_table.columns_of(accounted), accounted[0])[3:]
    assert parts == ["10.0?", "0.5?"] and residual == "4.5"
    assert budget_table.DOUBTFUL_OR_OPEN in budget_table.footnotes([row], accounted)
    closed = budgeted([traced()])
    assert not any("?" in text for text in cells(budget_table.columns_of(closed), closed[0]))
