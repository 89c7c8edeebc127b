import base64
import gzip
import json
import random
import re

from hypothesis import given
from hypothesis import strategies as st

from scalebench.records.summary import StepSamples, TimedCollectives
from scalebench.report import render_page
from scalebench.report.figures import scaling, style
from scalebench.report.figures.charts import json_for_script
from scalebench.report.page import comparison
from scalebench.report.page.other_pages import INDEX, TOUR, Exhibit, render_gallery
from scalebench.report.page.overview import link_card
from scalebench.report.page.sections import Material, sections
from scalebench.report.words import wording
from scalebench.session.suites import suite_files
from tests.builders.shown.page_data import everything, make_evidence
from tests.builders.shown.pages import Page
from tests.builders.summaries import (
    HOSTILE,
    hostile_summary,
    make_missing,
    make_plain,
    make_row,
    make_summary,
    predicted_row,
    samples,
)
from tests.examples import cases


def test_nothing_is_loaded_from_anywhere():
    usual = Page(render_page([make_summary()]))
    loaded = [a.get("src") for tag in ("script", "img", "iframe") for a in usual.all(tag)]
    loaded += [a.get("href") for a in usual.all("link")]
    assert [place for place in loaded if place] == ["data:,"]
    (policy,) = [m["content"] for m in usual.all("meta") if "http-equiv" in m]
    assert policy.startswith("default-src 'none'") and "unsafe-eval" not in policy
    assert "'unsafe-inline'" not in policy.split("script-src")[1].split(";")[0]


def test_huge_raw_data_stay_beside_the_page():
    draw = random.Random(0)
    samples = [StepSamples(repeat=0, step_s=[draw.uniform(0.1, 0.2) for _ in range(50_000)])]
    text = render_page([make_summary([make_plain(samples=samples)])])
    assert len(text) < 5_500_000
    assert "without the raw step times" in text


def test_hostile_strings_make_no_element_and_no_handler():
    hostile = Page(render_page([hostile_summary()]))
    assert len([s for s in hostile.scripts if not s[0].get("type")]) == 2
    assert not hostile.all("img") and not hostile.all("iframe")
    for tag, attributes in hostile.elements:
        assert not [name for name in attributes if name.startswith("on")], tag
        assert not (attributes.get("href") or "").startswith("javascript")
    assert "{{ 7 * 7 }}" in hostile.text and "49{%" not in hostile.text


@given(st.text())
def test_json_in_a_script_cannot_end_it_and_reads_back(text):
    block = json_for_script(json.dumps({"x": text + "</script><!--"}, ensure_ascii=False))
    assert not set("<>&\u2028\u2029") & set(block)
    assert json.loads(block)["x"] == text + "</script><!--"


@given(st.lists(st.floats(1e-6, 1e3), min_size=1), st.integers(8, 60))
def test_down_sampling_keeps_the_extremes(values, most):
    kept = scaling.sampled(values, most)
    assert len(kept) == min(most, len(values))
    assert (kept[0], kept[-1]) == (min(values), max(values))


def test_a_traceback_keeps_its_lines():
    text = render_page([make_summary([make_missing(status="failed", reason="a\n  b\nc")])])
    assert re.search(r"<pre[^>]*>a\n  b\nc</pre>", text)


def packed_rows(text):
    (packed,) = re.findall(r'<script type="text/plain" id="run-1-rows">(.*?)</script>', text)
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def test_a_row_without_a_result_has_a_view_that_says_why():
    text = render_page([make_summary([make_plain(), make_missing(reason="8 <ranks>, 2 cores")])])
    shown = packed_rows(text)["ddp/ddp-25mb/N=8"]
    assert "8 &lt;ranks&gt;, 2 cores" in shown and "skipped" in shown


def test_hostile_strings_make_no_element_in_the_view_of_a_row():
    found = packed_rows(render_page([hostile_summary()]))
    assert len(found) == 36
    for html in found.values():
        page = Page(html)
        assert not page.all("img") and not page.all("script")
        assert not [name for _, told in page.elements for name in told if name.startswith("on")]


def timed(*fits, **changes):
    fields = {"suites": ["collectives"], "num_points": 40, "num_wrong": 0}
    return TimedCollectives(fits=list(fits), **{**fields, **changes})


@cases(
    "found, said",
    (timed(failure="rank 1 died"), "Failed: rank 1 died."),
    (timed(num_wrong=3), "40 points, every result verified: 3 wrong elements."),
)
def test_what_failed_is_said_first(found, said):
    card = link_card(found, "")
    assert (card.headline, card.operations, card.link) == (said, None, "")


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


def test_the_command_and_what_each_case_reached_are_shown():
    summary = make_summary()
    exhibit = Exhibit("a-run", summary, make_evidence(summary), {})
    told = " ".join(render_gallery([exhibit])[INDEX].split())
    assert summary.reproduce.replace("&", "&amp;") in told
    (answer,) = exhibit.answers
    suite = answer.suite
    assert suite.cases
    for case in suite.cases:
        assert f'<th scope="row">{case.name}</th>' in told
        assert case.result.replace(" ", "\N{NO-BREAK SPACE}") in told or case.result in told


def test_every_bundled_suite_has_a_place_in_the_tour():
    assert sorted(TOUR) == sorted(suite_files())
