"""Timed collectives on the overview: what failed is said first."""

import pytest

from scalebench.records.summary import TimedCollectives
from scalebench.report.page.overview import link_card


def timed(*fits, **changes):
    fields = {"suites": ["collectives"], "num_points": 40, "num_wrong": 0}
    return TimedCollectives(fits=list(fits), **{**fields, **changes})


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
