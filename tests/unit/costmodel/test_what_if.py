"""A step with something changed: what is said of it, and what it sends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.costmodel.replay import CommRequest
from scalebench.costmodel.step import StepShape
from scalebench.costmodel.what_if import (
    AS_MEASURED,
    WhatIf,
    break_even_byte_per_s,
    pays,
    saved_bytes,
    sent_bytes,
    with_buckets,
)
from scalebench.stats import Estimate

MIB = 2**20
ENDS_S = 0.12


def shape(*requests):
    return StepShape(requests, ENDS_S, 0.0, 32, {})


def bucket(size_bytes, ready_s):
    return CommRequest("all_reduce", size_bytes, ready_s, ENDS_S)


def test_where_nothing_changes_nothing_is_said_and_the_step_stays():
    step = shape(bucket(MIB, 0.08))
    assert AS_MEASURED.described() == [] and AS_MEASURED.shape(step) == step


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (WhatIf(times_bandwidth=2.0), "2 times the bandwidth"),
        (WhatIf(gradient_bits=16), "gradients of 16 bits, conversion not counted"),
        (WhatIf(bucket_mb=0.25), "buckets of 0.25 MiB"),
        (WhatIf(hierarchical=True), "hierarchical all-reduce"),
        (WhatIf(microbatches=8), "pipelines' batches in 8 microbatches"),
    ],
)
def test_one_change_is_said_and_no_other(change, words):
    assert change.described() == [words]


def test_smaller_buckets_are_ready_evenly_between_the_measured_ones():
    """Backward begins at 40 ms; 2 MiB are ready at 80, 4 at 100 ms."""
    made = with_buckets(shape(bucket(2 * MIB, 0.08), bucket(2 * MIB, 0.10)), MIB)
    assert [request.size_bytes for request in made.requests] == [MIB] * 4
    ready = [request.ready_s for request in made.requests]
    assert ready == pytest.approx([0.06, 0.08, 0.09, 0.10])
    (one,) = with_buckets(made, 25 * MIB).requests
    assert (one.size_bytes, one.ready_s) == (4 * MIB, pytest.approx(0.10))


def test_what_is_no_bucket_of_gradients_stays():
    early = CommRequest("all_reduce", 8, 0.01, 0.01)
    made = with_buckets(shape(early, bucket(MIB, 0.08)), MIB / 2)
    assert made.requests[0] == early and len(made.requests) == 3
    assert with_buckets(shape(early), MIB) == shape(early)


def test_half_the_bits_are_half_the_bytes_of_what_is_reduced():
    gather = CommRequest("all_gather", 1000, 0.01, 0.01)
    scatter = CommRequest("reduce_scatter", 1000, 0.02, ENDS_S)
    made = WhatIf(gradient_bits=16).shape(shape(gather, scatter, bucket(1, 0.08)))
    assert [request.size_bytes for request in made.requests] == [1000, 500, 1]


def test_fewer_bits_than_were_measured_are_a_part_of_them_and_buckets_are_cut_first():
    made = WhatIf(gradient_bits=12, bucket_mb=1.0).shape(shape(bucket(MIB + 8, 0.08)), 16)
    assert [request.size_bytes for request in made.requests] == [3 * MIB // 4, 6]


def test_the_break_even_by_hand():
    """N=4: 150 bytes saved of 100 gathered ones at 1 each: (150 - 3) / 7 s = 21 B/s."""
    saved = saved_bytes(100, 0, 1, 4)
    assert saved == pytest.approx(147)
    found = break_even_byte_per_s(saved, Estimate(value=7, low=3.5, high=14, n=3))
    assert (found.value, found.low, found.high) == pytest.approx((21, 10.5, 42))


def test_an_all_gather_stops_paying_when_ranks_are_many():
    """A rank sends a quarter of the bytes N-1 times: from N=8 on as much as float32."""
    assert saved_bytes(1000, 0, 250, 7) > 0
    assert saved_bytes(1000, 0, 250, 8) == pytest.approx(0)
    found = break_even_byte_per_s(saved_bytes(1000, 0, 250, 16), Estimate(value=1, n=1))
    assert found.value < 0
    assert pays(found, 1.0) is False


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


@pytest.mark.parametrize(
    ("link", "expected"), [(5.0, True), (15.0, None), (25.0, False), (10.0, None)]
)
def test_whether_it_pays_is_told_by_the_interval(link, expected):
    assert pays(Estimate(value=14, low=10, high=20, n=3), link) is expected
