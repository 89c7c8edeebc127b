"""The figures of a run's folder: each has words and a table; and what two runs differ in."""

import json

from scalebench.report import render_page
from scalebench.report.figures import style
from scalebench.report.page import comparison
from scalebench.report.page.sections import Material, sections
from scalebench.report.words import wording
from tests.builders.shown.page_data import everything, make_evidence
from tests.builders.summaries import (
    HOSTILE,
    hostile_summary,
    make_row,
    make_summary,
    predicted_row,
    samples,
)


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
