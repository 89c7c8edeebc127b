"""The figures of a run's folder: each has words and a table; and what two runs differ in."""

import json

import pytest

from scalebench.records.largest_batch import LargestBatch
from scalebench.records.rows.balance import BalanceFigures
from scalebench.report import render_page
from scalebench.report.figures import power, style
from scalebench.report.figures.charts import Chart, make_chart
from scalebench.report.figures.over_steps import LOSS_SCALE, SHARES
from scalebench.report.gate.history import history_table
from scalebench.report.page import comparison
from scalebench.report.page.sections import Material, sections
from scalebench.report.tables.memory import max_batch_table
from scalebench.report.words import wording
from tests.builders.gated import gated_run
from tests.builders.page_data import everything, make_evidence
from tests.builders.summaries import (
    HOSTILE,
    gpu_rows,
    hostile_summary,
    make_plain,
    make_row,
    make_summary,
    predicted_row,
    samples,
)


def drawn(kind, rows) -> tuple[Chart, list[dict]]:
    chart = make_chart(kind, "x", rows, style.assign(rows))
    assert chart is not None
    return chart, json.loads(chart.spec)["data"]


@pytest.mark.parametrize("count", [2, 7])
def test_the_page_of_several_runs_has_their_history(count):
    runs = [gated_run(seed=i, run_id=f"run-{i}") for i in range(count)]
    page = render_page(runs)
    assert f"<h4>History of {count} runs</h4>" in page
    table = history_table(runs)
    assert len(table.lines) == 9 and {len(line[4]) for line in table.lines} == {count}
    assert "History of" not in render_page(runs[:1])


def test_power_is_drawn_with_what_held_it_down():
    rows = gpu_rows()
    devices = make_evidence(make_summary(rows)).devices
    chart, data = drawn(power.power_kind(devices), rows)
    bands = [trace for trace in data if trace.get("legendgroup") == power.THROTTLED]
    assert bands and bands[0]["x"][:4] == [4.0, 4.0, 5.5, 5.5]
    assert "held its clock down for 1.50 s" in chart.conclusion and "power cap" in chart.conclusion
    assert {trace.get("yaxis") for trace in data} >= {"y", "y2", "y3"}


def test_each_suite_shows_its_own_largest_batch():
    found = [
        LargestBatch(suite=suite, case="ddp", world_size=2, fits=fits, too_large=fits + 3)
        for suite, fits in (("small", 96), ("large", 48))
    ]
    for suite, line in (("small", ("96", "99", "192")), ("large", ("48", "51", "96"))):
        table = max_batch_table([make_row("ddp", 2, suite=suite)], found)
        assert table is not None and table.lines[0][:5] == ("ddp", "2", *line)
    assert max_batch_table([make_row("ddp", 2, suite="other")], found) is None


def slower(row, factor):
    changed = samples(row.step_s.value * factor, 3, seed=7)
    return row.model_copy(update={"samples": changed})


def test_two_runs_are_held_against_one_another():
    base = [make_row("ddp-25mb", 2), make_row("ddp-1mb", 2), make_row("gone", 2)]
    new = [slower(base[0], 1.2), slower(base[1], 1.0), make_row("ddp-25mb", 4)]
    before, after = make_summary(base), make_summary(new, run_id="another")
    found = comparison.compare("c", before, after, style.assign([*base, *new]))
    assert found.conclusion.startswith("Of 2 rows in both runs, 1 is slower, ddp-25mb, N=2 most")
    assert found.conclusion.endswith("and 1 shows no change.")
    table, facts, alone = found.tables
    assert [line[6] for line in table.lines] == ["slower", "no change seen"]
    assert ("run", before.run_id, "another") in facts.lines
    assert {line[2] for line in alone.lines} == {"only in the first run", "only in the second run"}


def test_rows_that_trained_other_batches_are_not_compared():
    base, new = make_row(), make_row(scaling="weak")
    found = comparison.compare("c", make_summary([base]), make_summary([new]), style.assign([base]))
    assert found.conclusion == "The runs have no row in common."
    assert "different: scaling" in found.tables[-1].lines[0][2]


def test_sections_come_in_their_order_and_each_figure_has_words_and_a_table():
    summary, page_data = everything()
    material = Material("run-1", wording.by_suite(summary.rows), style.assign(summary.rows),
                        summary.largest_batches, page_data)  # fmt: skip
    found = sections(material)
    assert [section.name for section in found] == [
        "speedup", "efficiency", "budget", "model", "timeline", "communication", "steps",
        "memory", "extrapolation",
    ]  # fmt: skip
    charts = [chart for section in found for chart in section.charts]
    assert len({chart.id for chart in charts}) == len(charts) > 10
    for chart in charts:
        assert chart.conclusion.endswith(".") and len(chart.conclusion.split()) > 3, chart.id
        assert chart.conclusion in chart.label
        assert chart.table and len(chart.table[0]) == len(chart.header), chart.id


def test_a_run_without_a_link_says_in_one_line_how_to_get_predictions():
    reason = {"predicted_step_s": "no link was calibrated in this run"}
    text = render_page([make_summary([make_plain(), make_row(unavailable=reason)])])
    assert "Nothing was predicted: no link was calibrated in this run." in text


def test_hostile_strings_stay_text_in_every_figure():
    summary = hostile_summary()
    page_data = make_evidence(summary, device=HOSTILE[0])
    evil = [predicted_row(row) if row.step_s else row for row in summary.rows]
    changed = summary.model_copy(update={"rows": evil})
    text = render_page([changed, changed], [page_data, page_data])
    for script in text.split('<script type="application/json"')[1:]:
        spec = script.partition("</script>")[0]
        data = json.dumps(json.loads(spec.partition(">")[2]))
        assert "<script" not in data and "<img" not in data and "<a " not in data
    assert "<script>window.pwned" not in text and "<img src=x" not in text


def test_what_changes_over_the_steps_is_drawn_from_the_step_on_from_which_it_holds():
    shares = {"shares": [22, 10], "history": [(0, [16, 16]), (40, [22, 10])], "num_changes": 1}
    times = {"sample_s": [0.005, 0.01], "equal_s": 0.16, "ideal_s": 0.107, "balanced_s": 0.11}
    scale = {"loss_scale": [(0, 65536.0), (3, 32768.0)], "num_skipped_steps": 1}
    rows = [make_row("ddp", 2, balance=BalanceFigures(**shares, **times), **scale), make_row("b")]
    chart, data = drawn(SHARES, rows)
    assert [(one["x"], one["y"]) for one in data] == [
        ([0, 40, 41], [16, 22, 22]),
        ([0, 40, 41], [16, 10, 10]),
    ]
    assert "changed 1 times and ended at 22, 10 samples" in chart.conclusion
    assert chart.table[-1][-3:] == ("rank 1", "40", "10")
    chart, (line,) = drawn(LOSS_SCALE, rows)
    assert (line["x"], line["y"]) == ([0, 3, 4], [65536.0, 32768.0, 32768.0])
    assert "ended at 32768; 1 steps of the measurement were skipped" in chart.conclusion
    assert all(
        make_chart(kind, "x", rows[1:], style.assign(rows)) is None for kind in (SHARES, LOSS_SCALE)
    )
