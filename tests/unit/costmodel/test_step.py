import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scalebench.costmodel import what_if
from scalebench.costmodel.step import CommRequest, StepShape, replay
from scalebench.stats import Estimate
from tests.examples import cases

MOMENTS = st.floats(0, 1)


@example(moments=[], factor=1.0, num_samples=8)
@given(
    moments=st.lists(st.tuples(MOMENTS, MOMENTS), max_size=6),
    factor=st.floats(0.2, 5.0),
    num_samples=st.sampled_from((8, 16)),
)
def test_a_slowed_step_is_as_much_longer_and_can_be_replayed(moments, factor, num_samples):
    pairs = sorted((min(pair), max(pair)) for pair in moments)
    requests = tuple(CommRequest("all_reduce", 100, ready, needed) for ready, needed in pairs)
    shape = StepShape(requests, 0.8, 0.2, 16, {8: 0.55})
    slowed = shape.slowed(factor, num_samples)
    bare = shape.with_batch(num_samples)
    assert slowed.computing_s == pytest.approx(factor * bare.computing_s)
    assert slowed.with_batch(num_samples).computing_s == pytest.approx(slowed.computing_s)
    replay(
        slowed.requests, [0.0] * len(requests), slowed.computing_s
    )  # raises what is out of order
    for before, after in zip(bare.requests, slowed.requests, strict=True):
        assert after.ready_s == pytest.approx(factor * before.ready_s)


def test_a_part_of_the_batch_that_was_shorter_than_the_optimizer_can_be_predicted_from():
    """Noise does it where the model is tiny; the batch's share of the step is nothing then."""
    requests = (CommRequest("all_reduce", 100, 0.1, 0.15),)
    shape = StepShape(requests, 0.2, 0.8, 16, {8: 0.7})
    for factor in (1.0, 1.3):
        slowed = shape.slowed(factor, 8)
        again = slowed.with_batch(8)
        assert again.computing_s == pytest.approx(factor * 0.7)
        assert again.batch_s == 0
        replay(again.requests, [0.0], again.computing_s)  # raises what is out of order


def walk(requests, takes_s, computing_s, tick=0.125):
    """The same by letting time pass tick by tick, all durations multiples of a tick: slow, sure."""
    now, done, free_at, ends = 0.0, 0.0, 0.0, []
    asked = 0
    while True:
        while (
            asked < len(requests)
            and requests[asked].ready_s <= done
            and not any(
                r.needed_s <= done and end > now for r, end in zip(requests, ends, strict=False)
            )
        ):
            free_at = max(free_at, now) + takes_s[asked]
            ends.append(free_at)
            asked += 1
        held = any(r.needed_s <= done and end > now for r, end in zip(requests, ends, strict=False))
        if done >= computing_s and not held:
            return now
        now += tick
        done += 0.0 if held or done >= computing_s else tick


grid = st.integers(0, 40).map(lambda n: n * 0.125)


@st.composite
def steps_on_a_grid(draw):
    ready = sorted(draw(st.lists(grid, max_size=5)))
    computing = 5.0 + draw(grid)
    later = st.integers(0, 80).map(lambda n: n * 0.125)
    requests = [
        CommRequest("all_reduce", 8, moment, min(moment + draw(later), computing))
        for moment in ready
    ]
    return requests, [draw(grid) for _ in requests], computing


@given(steps_on_a_grid())
def test_it_goes_as_when_time_passes_tick_by_tick_and_the_link_does_one_at_a_time(step):
    requests, takes, computing = step
    found = replay(requests, takes, computing)
    assert found.step_s == pytest.approx(walk(*step))
    assert found.step_s == pytest.approx(computing + found.stalled_s)
    free_s = 0.0
    for (start, end), request, took in zip(found.spans_s, requests, takes, strict=True):
        assert start >= max(request.ready_s, free_s) and end - start == pytest.approx(took)
        free_s = end


@cases(
    "change, words",
    (what_if.WhatIf(times_bandwidth=2.0), "2 times the bandwidth"),
    (what_if.WhatIf(gradient_bits=16), "gradients of 16 bits, conversion not counted"),
    (what_if.WhatIf(bucket_mb=0.25), "buckets of 0.25 MiB"),
    (what_if.WhatIf(hierarchical=True), "hierarchical all-reduce"),
    (what_if.WhatIf(microbatches=8), "pipelines' batches in 8 microbatches"),
)
def test_one_change_is_said_and_no_other(change, words):
    assert change.described() == [words]


def test_the_break_even_by_hand():
    """N=4: 150 bytes saved of 100 gathered ones at 1 each: (150 - 3) / 7 s = 21 B/s."""
    saved = what_if.saved_bytes(100, 0, 1, 4)
    assert saved == pytest.approx(147)
    found = what_if.break_even_byte_per_s(saved, Estimate(value=7, low=3.5, high=14, n=3))
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
    saved = what_if.saved_bytes(whole, *sent, n)
    found = what_if.break_even_byte_per_s(saved, Estimate(value=codec_s, n=1)).value
    if found <= 0:
        assert what_if.sent_bytes(*sent, n) >= what_if.sent_bytes(whole, 0, n) * (1 - 1e-9)
        return
    link = side * found
    exact_s, compressed_s = (what_if.sent_bytes(*s, n) / link for s in ((whole, 0), sent))
    assert (compressed_s + codec_s < exact_s) == (side < 1)


@cases("link, expected", (5.0, True), (15.0, None), (25.0, False), (10.0, None))
def test_whether_it_pays_is_told_by_the_interval(link, expected):
    assert what_if.pays(Estimate(value=14, low=10, high=20, n=3), link) is expected
