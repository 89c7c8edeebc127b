"""The levels of the page: addresses, colours, cards."""

import base64
import gzip
import json
import re

from scalebench.report import render_page
from scalebench.report.figures import style
from scalebench.report.findings.findings import judge
from scalebench.report.page import addresses, overview
from tests.builders.pages import Page
from tests.builders.summaries import (
    attributed,
    hostile_summary,
    make_missing,
    make_plain,
    make_row,
    make_summary,
    remembered,
)


def suite_card_of(found):
    (suite,) = judge(make_summary(found)).suites
    return overview.suite_card(suite, found, style.assign(found))


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
    looks = style.assign(found)
    assert looks["ddp", "ddp"] == looks["fsdp", "ddp"]
    by_name = {case: look for (_, case), look in looks.items()}
    assert len(set(by_name.values())) == len(by_name)
    fsdp = [look.color for (suite, _), look in looks.items() if suite == "fsdp"]
    assert len(set(fsdp)) == len(fsdp)


def test_a_case_whose_efficiency_may_be_wrong_says_so_on_the_card():
    rows = [make_plain(), make_row(stamps=["probe effect: 12.9 %"]), make_row("other")]
    marked, clean = suite_card_of(rows).cases
    assert (marked.doubt, clean.doubt) == ("probe effect 12.9 %", "")
    assert suite_card_of([make_plain(), make_row(stamps=["budget open"])]).cases[0].doubt == ""


def test_a_suite_of_failed_rows_has_a_card_that_says_so():
    card = suite_card_of([make_missing(status="failed", reason="ValueError: no")])
    assert card.chart is None and "Nothing was measured" in card.headline
    assert card.missing == "1 row: 1 failed"


def test_the_largest_loss_of_many_cases_says_so_where_a_larger_one_may_be_none():
    losses = {"wait": 10.0, "data_stall": 5.0}
    sure, doubtful = (
        [make_plain(), *(attributed(make_row(name, efficiency=0.85), losses=losses, doubtful=doubt)
                         for name in ("a", "b"))]
        for doubt in ((), ("wait",))
    )  # fmt: skip
    assert suite_card_of(sure).loss == "waiting, 10.0 % of the step of a"
    assert (
        suite_card_of(doubtful).loss == "data, 5.0 % of the step of a, the largest that is certain"
    )


def packed_rows(text):
    (packed,) = re.findall(r'<script type="text/plain" id="run-1-rows">(.*?)</script>', text)
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def test_a_row_without_a_result_has_a_view_that_says_why():
    text = render_page([make_summary([make_plain(), make_missing(reason="8 <ranks>, 2 cores")])])
    shown = packed_rows(text)["ddp/ddp-25mb/N=8"]
    assert "8 &lt;ranks&gt;, 2 cores" in shown and "skipped" in shown


def test_each_strip_of_a_row_has_its_own_unit():
    row = remembered(attributed(make_row(efficiency=0.85)))
    shown = packed_rows(render_page([make_summary([make_plain(), row])]))["ddp/ddp-25mb/N=2"]
    parts = re.findall(r"</i>([a-z ]+) <b>([^<]+)</b>", shown)
    assert {name: text.split()[1] for name, text in parts if name in ("transfer", "gradients")} == {
        "transfer": "%",
        "gradients": "MB",
    }
    assert all(len(text.split()) == 2 for _, text in parts)


def test_hostile_strings_make_no_element_in_the_view_of_a_row():
    found = packed_rows(render_page([hostile_summary()]))
    assert len(found) == 36
    for html in found.values():
        page = Page(html)
        assert not page.all("img") and not page.all("script")
        assert not [name for _, told in page.elements for name in told if name.startswith("on")]
