"""Timed collectives on the overview: one line for each operation, at the largest N."""

import pytest

from scalebench.records.summary import TimedCollectives
from scalebench.report.page.overview import link_card
from scalebench.report.page.page import render_page
from scalebench.report.words import linking
from tests.builders.summaries import make_summary


def fit(op="all_reduce", world_size=4, min_bytes=8, **changes):
    fields = {
        "algorithm": "backend",
        "in_place": True,
        "dtype": "float32",
        "law": "ring",
        "alpha_s": 1e-4,
        "bandwidth_byte_per_s": 20e6,
    }
    return {"op": op, "world_size": world_size, "min_bytes": min_bytes, **fields, **changes}


def timed(*fits, **changes):
    fields = {"suites": ["collectives"], "num_points": 40, "num_wrong": 0}
    return TimedCollectives(fits=list(fits), **{**fields, **changes})


def test_a_message_costs_what_small_ones_show_and_a_link_carries_what_large_ones_show():
    found = timed(
        fit(min_bytes=4096, alpha_s=9e-6, bandwidth_byte_per_s=23e6),
        fit(min_bytes=8, alpha_s=1.2e-4, bandwidth_byte_per_s=80e6),
        fit(world_size=2, alpha_s=5e-5),
    )
    (one,) = linking.operations(found)
    assert (one.op, one.world_size, one.alpha_s) == ("all_reduce", 4, 1.2e-4)
    assert one.bandwidth_byte_per_s == 23e6
    assert linking.headline(found) == (
        "On 4 ranks a message of all_reduce costs 120 µs, and a link carries 23.0 MB/s. "
        "40 points, every result verified: 0 wrong elements."
    )


def test_other_algorithms_and_places_do_not_stand_for_the_backend():
    found = timed(
        fit(algorithm="tree", alpha_s=1.0),
        fit(op="all_gather", alpha_s=1.0),
        fit(op="all_gather", in_place=False, alpha_s=2e-4, bandwidth_byte_per_s=None),
    )
    card = link_card(found, "run-1-links")
    assert card.operations.lines == (("all_gather", "4", "200 µs", "–", "ring"),)
    assert "carries" not in card.headline


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (timed(failure="rank 1 died"), "Failed: rank 1 died."),
        (timed(num_wrong=3), "40 points, every result verified: 3 wrong elements."),
    ],
)
def test_what_failed_is_said_first(found, said):
    card = link_card(found, "")
    assert (card.headline, card.operations, card.link) == (said, None, "")


def test_the_page_of_collectives_alone_is_not_empty():
    summary = make_summary([]).model_copy(update={"collectives": timed(fit())})
    page = render_page([summary], [None], plotly="beside.js")
    assert "On 4 ranks a message of all_reduce costs" in page and "a link carries" in page
    assert link_card(None, "") is None
