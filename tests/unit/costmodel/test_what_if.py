"""A step with something changed: what is said of it, and what it sends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.costmodel.what_if import (
    WhatIf,
    break_even_byte_per_s,
    pays,
    saved_bytes,
    sent_bytes,
)
from scalebench.stats import Estimate
from tests.examples import cases


@cases(
    "change, words",
    (WhatIf(times_bandwidth=2.0), "2 times the bandwidth"),
    (WhatIf(gradient_bits=16), "gradients of 16 bits, conversion not counted"),
    (WhatIf(bucket_mb=0.25), "buckets of 0.25 MiB"),
    (WhatIf(hierarchical=True), "hierarchical all-reduce"),
    (WhatIf(microbatches=8), "pipelines' batches in 8 microbatches"),
)
def test_one_change_is_said_and_no_other(change, words):
    assert change.described() == [words]


def test_the_break_even_by_hand():
    """N=4: 150 bytes saved of 100 gathered ones at 1 each: (150 - 3) / 7 s = 21 B/s."""
    saved = saved_bytes(100, 0, 1, 4)
    assert saved == pytest.approx(147)
    found = break_even_byte_per_s(saved, Estimate(value=7, low=3.5, high=14, n=3))
    assert (found.value, found.low, found.high) == pytest.approx((21, 10.5, 42))


@given(
    n=st.integers(2, 64),
    ratio=st.floats(0.001, 0.4),
    codec_s=st.floats(1e-5, 1),
    side=st.sampled_from([0.5, 0.99, 1.01, 2.0]),
    gathers=st.booleans(),
)
def test_below_it_the_compressed_step_is_shorter_and_above_longer(n, ratio, codec_s, side, gathers):
    whole = 1e6
    sent = (0, ratio * whole) if gathers else (ratio * whole, 0)
    saved = saved_bytes(whole, *sent, n)
    found = break_even_byte_per_s(saved, Estimate(value=codec_s, n=1)).value
    if found <= 0:
        assert sent_bytes(*sent, n) >= sent_bytes(whole, 0, n) * (1 - 1e-9)
        return
    link = side * found
    exact_s, compressed_s = (sent_bytes(*s, n) / link for s in ((whole, 0), sent))
    assert (compressed_s + codec_s < exact_s) == (side < 1)


@cases("link, expected", (5.0, True), (15.0, None), (25.0, False), (10.0, None))
def test_whether_it_pays_is_told_by_the_interval(link, expected):
    assert pays(Estimate(value=14, low=10, high=20, n=3), link) is expected
