"""The levels of the page: addresses, colours, cards."""

import base64
import gzip
import json
import re

from scalebench.records.summary import TimedCollectives
from scalebench.report import render_page
from scalebench.report.page.overview import link_card
from tests.builders.shown.pages import Page
from tests.builders.summaries import hostile_summary, make_missing, make_plain, make_summary
from tests.examples import cases


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
