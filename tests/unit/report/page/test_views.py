"""The levels of the page: overview, suite and row, their addresses, cards and bars."""

import base64
import gzip
import json
import re

from markupsafe import Markup

from scalebench.report import render_page
from scalebench.report.findings.findings import judge
from scalebench.report.page import (
    addresses,
    bars,
    cards,
    changes,
    comparison,
    overview,
    palette,
    rows,
)
from scalebench.report.page.charts import Chart
from scalebench.report.page.efficiency_chart import efficiency_chart
from scalebench.report.page.sections import Material, of_suite, sections
from scalebench.report.words import wording
from tests.builders.page_data import make_evidence
from tests.builders.summaries import (
    attributed,
    hostile_summary,
    make_missing,
    make_plain,
    make_row,
    make_summary,
    many_rows,
    samples,
    traced_rows,
    usual_rows,
)
from tests.unit.report.page.test_html import Page


def cards_of(found):
    looks = palette.assign(found)
    (suite,) = judge(make_summary(found)).suites
    return {card.finding.case: card for card in cards.make_cards(suite.findings, looks)}


def suite_card_of(found):
    (suite,) = judge(make_summary(found)).suites
    return overview.suite_card(suite, found, palette.assign(found))


def test_an_address_names_suite_case_and_size_and_survives_any_name():
    assert addresses.row_address(make_row("ddp-1mb", 2)) == "ddp/ddp-1mb/N=2"
    strange = make_row('a/b "#%', 4)
    assert addresses.row_address(strange, ["run-2"]) == "run-2/ddp/a%2Fb%20%22%23%25/N=4"


def test_a_case_looks_the_same_in_every_suite_and_no_two_cases_look_alike():
    found = [
        make_row(case, suite=suite)
        for suite, cases in {
            "ddp": ["ddp", *(f"d{i}" for i in range(11))],
            "fsdp": ["f0", "ddp", *(f"f{i}" for i in range(1, 8))],
        }.items()
        for case in cases
    ]
    looks = palette.assign(found)
    assert looks["ddp", "ddp"] == looks["fsdp", "ddp"]
    by_name = {case: look for (_, case), look in looks.items()}
    assert len(set(by_name.values())) == len(by_name)
    fsdp = [look.color for (suite, _), look in looks.items() if suite == "fsdp"]
    assert len(set(fsdp)) == len(fsdp)


def test_a_card_has_its_result_the_largest_loss_and_one_advice():
    card = cards_of(traced_rows())["ddp-25mb"]
    assert (card.figure + card.unit, card.share) == ("1.700×", "85.0 ± 3.4 %")
    assert card.sentence == (
        "Probable, not certain: waiting, 9.4 of the 15.0 % lost. Certain: 5.4 % lost to transfer."
    )
    assert card.next_step and card.link == "ddp/ddp-25mb/N=2" and not card.noisy
    assert card.bar is not None and card.bar.low < card.bar.middle < card.bar.high


def test_a_strip_has_the_parts_that_take_time_hatched_where_not_significant():
    strip = cards_of(traced_rows())["ddp-25mb"].strip
    assert [(one.key, one.sure) for one in strip.segments] == [
        ("exposed_transfer", True),
        ("wait", False),
        ("other_idle", True),
    ]
    assert sum(one.width for one in strip.segments) <= 100.1
    assert strip.segments[0].color == palette.PART_COLORS["exposed_transfer"]
    assert strip.total == "15.0" and "waiting 9.4 (uncertain)" in strip.text
    other = attributed(make_row(efficiency=0.85), losses={"wait": 40.0})
    assert bars.strip(other, 1.0) is None  # its budget does not close


def test_what_has_no_interval_or_a_wide_one_is_noisy():
    assert cards_of([make_plain(), make_row(spread=None)])["ddp-25mb"].noisy
    assert cards_of([make_plain(), make_row(spread=0.2)])["ddp-25mb"].noisy
    assert not cards_of([make_plain(), make_row(spread=0.05)])["ddp-25mb"].noisy


def test_the_card_of_a_suite_answers_what_is_best_what_costs_and_what_to_try():
    card = suite_card_of(traced_rows())
    assert card.headline.startswith("Highest efficiency: case ddp-25mb, 85.0 % (81.6–88.4). Not")
    assert [line.name for line in card.cases] == ["ddp-25mb", "ddp-1mb"]
    assert card.cases[0].link == "ddp/ddp-25mb/N=2"
    assert card.loss.startswith("ddp-25mb: probable, not certain: waiting, 9.4 of the 15.0 % lost")
    assert card.next_step.startswith("ddp-25mb: Probably: ")
    assert card.next_step and not card.missing
    assert suite_card_of(usual_rows()).missing == "9 rows: 1 out of memory and 2 skipped"


def test_a_case_whose_efficiency_may_be_wrong_says_so_on_the_card():
    rows = [make_plain(), make_row(stamps=["probe effect: 12.9 %"]), make_row("other")]
    marked, clean = suite_card_of(rows).cases
    assert (marked.doubt, clean.doubt) == ("probe effect 12.9 %", "")
    assert suite_card_of([make_plain(), make_row(stamps=["budget open"])]).cases[0].doubt == ""


def test_a_suite_of_failed_rows_has_a_card_that_says_so():
    card = suite_card_of([make_missing(status="failed", reason="ValueError: no")])
    assert card.chart is None and "Nothing was measured" in card.headline
    assert card.missing == "1 row: 1 failed"


def test_forty_cases_are_counted_not_listed():
    card = suite_card_of(many_rows(cases=40, sizes=(1, 2)))
    assert (len(card.cases), card.more) == (overview.MOST_CASES, 34)


def test_the_picture_of_a_suite_has_a_mark_for_each_row_that_opens_it():
    found = usual_rows()
    links = {id(row): addresses.row_address(row) for row in found}
    picture = efficiency_chart(found, palette.assign(found), links, "label")
    assert isinstance(picture, Markup)
    assert picture.count('data-row="ddp/ddp-25mb/N=2"') == 1
    assert picture.count("data-row") == 5 and picture.count("<polyline") == 2
    many = many_rows(cases=3, sizes=tuple(range(1, 130)))
    assert "data-row" not in efficiency_chart(many, palette.assign(many), {}, "")


def packed_rows(text):
    (packed,) = re.findall(r'<script type="text/plain" id="run-1-rows">(.*?)</script>', text)
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def views_of(found, page_data=None):
    looks = palette.assign(found)
    made = sections(Material("run-1", wording.by_suite(found), looks, [], page_data))
    charts = {
        section.name: [part for part in block.parts if isinstance(part, Chart)]
        for section, block in of_suite(made, "ddp")
    }
    return rows.row_views("run-1-suite-1", "ddp", found, looks, charts, page_data)


def test_the_view_of_a_row_shows_its_own_view_of_each_figure():
    found = traced_rows()
    made = views_of(found, make_evidence(make_summary(found)))
    view = next(view for view in made if view.link == "ddp/ddp-25mb/N=2")
    shown = {chart.source.title: chart for one in view.sections for chart in one.charts}
    assert {"From ideal to measured", "One step", "Every rank at every step"} <= set(shown)
    assert all(chart.choice.name == "ddp-25mb, N=2" for chart in shown.values())
    assert [size for size, _, _ in view.siblings] == [1, 2]
    assert view.operations == ("all_reduce",)
    alone = next(view for view in made if view.link == "ddp/ddp-25mb/N=1")
    (step,) = [one for one in alone.sections if one.name == "timeline"]
    assert step.absent == "The page has one step of this case at N=2."


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


def test_two_runs_have_addresses_of_their_own():
    text = render_page([make_summary(), make_summary(run_id="again")])
    addresses_ = re.findall(r'<section class="view[^>]*data-view="([^"]*)"', text)
    assert len(addresses_) == len(set(addresses_))
    assert {"", "run-1", "ddp", "run-2", "run-2/ddp"} <= set(addresses_)


def test_a_suite_has_no_card_of_more_than_eight_lines_closed():
    """Name, numbers, bar, strip; sentence and advice of at most two lines of 44 characters."""
    for card in cards_of(traced_rows()).values():
        lines = 2 + bool(card.bar) + bool(card.strip)
        lines += -(-len(card.sentence) // 44) + -(-len(card.next_step) // 44)
        assert lines <= 8, card.finding.case


def test_the_change_between_two_runs_is_a_card_for_each_suite_what_changed_first():
    base = [make_plain(), make_row("ddp-25mb", 2), make_row("ddp-1mb", 2)]
    slower = [
        row.model_copy(
            update={"step_s": None, "samples": samples(row.step_s.value * by, 3, seed=7)}
        )
        for row, by in zip(base, (1.0, 1.0, 1.3), strict=True)
    ]
    new = [
        row.model_copy(update={"step_s": was.step_s}) for row, was in zip(slower, base, strict=True)
    ]
    looks = palette.assign([*base, *new])
    found = comparison.compare("c", make_summary(base), make_summary(new), looks)
    (card,) = changes.change_cards(found.pairs, base, new, looks, ["run-2"])
    first, *_ = card.lines
    assert (first.name, first.verdict, first.sure) == ("ddp-1mb, N=2", "slower", True)
    assert first.link == "run-2/ddp/ddp-1mb/N=2" and first.bar.middle > 50
    assert not any(line.sure for line in card.lines[1:])
    assert card.chart is not None and card.chart.count("<polyline") == 4
    text = render_page([make_summary(base), make_summary(new, run_id="another")])
    assert text.count('aria-labelledby="comparison-1-card-1"') == 1
