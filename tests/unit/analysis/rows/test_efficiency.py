"""Below which bandwidth compression pays, by its step played on every link."""

import pytest

from scalebench.analysis.rows.fields import Unavailable
from scalebench.analysis.rows.launches import Launches
from scalebench.analysis.rows.strategies.against_uncompressed import replayed_break_even
from scalebench.costmodel.links.profile import profile_of
from scalebench.costmodel.links.times import LinkModel
from tests.builders.rows.predictions import ask, at_one, the_link
from tests.builders.runs import make_cell

N2 = make_cell("ddp", 2, global_batch=64, rank_batch=32)
"""As large a batch per rank as at N=1, so that computing takes as long."""

LINK = the_link(2)


def launches(*results):
    return Launches(results[0].cell, measured=dict(enumerate(results)))


def exact(clean=100):
    return at_one(ask(90, num_bytes=4_000_000), clean=clean)


def smaller(clean, num_bytes=1_000_000):
    return at_one(ask(90, num_bytes=num_bytes), clean=clean)


def test_it_says_what_is_missing():
    with pytest.raises(Unavailable, match="no launch of the strategy at N=1"):
        replayed_break_even(N2, None, launches(exact()), LINK)
    nothing = LinkModel(profile_of([], (), created="", version="", device="", backend="").fits)
    with pytest.raises(Unavailable, match="no all_reduce was calibrated"):
        replayed_break_even(N2, launches(smaller(120)), launches(exact()), nothing)
