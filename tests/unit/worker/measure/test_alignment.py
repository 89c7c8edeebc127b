"""The arithmetic of clock offsets, against clocks whose truth is known."""

from hypothesis import given
from hypothesis import strategies as st

from scalebench.worker.measure.alignment import (
    ROUND_TRIPS,
    ClockOffset,
    Exchange,
    combine,
    offset_of,
)

OFFSETS = st.integers(-(10**15), 10**15)
DELAYS = st.integers(0, 10**8)
S = 10**9


def exchange(offset_ns, there_ns, on_the_way_ns, back_ns):
    own = there_ns + offset_ns
    return Exchange(own - on_the_way_ns, there_ns, own + back_ns)


def measured(offset_ns, at_ns, bound_ns=0, error_ns=0):
    return ClockOffset(offset_ns + error_ns, bound_ns, at_ns, "ping-pong")


@given(OFFSETS, st.lists(st.tuples(DELAYS, DELAYS), min_size=1, max_size=ROUND_TRIPS))
def test_the_true_offset_is_within_the_bound_whatever_the_delays(offset, delays):
    exchanges = [exchange(offset, 10**12 + i * S, *delay) for i, delay in enumerate(delays)]
    found = offset_of(exchanges)
    assert abs(found.offset_ns - offset) <= found.bound_ns
    assert found.bound_ns <= min(map(sum, delays)) / 2 + 1


@given(
    OFFSETS,
    st.floats(-190e-6, 190e-6),
    st.integers(1_000_000, 3600 * S),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.floats(-1, 1),
    st.floats(-1, 1),
    st.floats(0, 1),
)
def test_drift_is_followed_within_the_bound(
    offset, drift, elapsed, bound_0, bound_1, wrong_0, wrong_1, where
):
    start = 10**13 + offset
    before = measured(offset, start, bound_0, round(wrong_0 * bound_0))
    after = measured(
        offset + round(drift * elapsed), start + elapsed, bound_1, round(wrong_1 * bound_1)
    )
    alignment = combine(before, after)
    assert alignment.stepped is None
    time = start + round(where * elapsed)
    truth = time - offset - drift * (time - start)
    assert abs(alignment.on_rank_0(time) - truth) <= alignment.bound_ns + 2  # whole nanoseconds


@given(OFFSETS, st.sampled_from([-1, 1]), st.integers(10**6, 10**12), st.integers(0, 10**5))
def test_a_step_is_told_and_the_bound_reaches_to_both_sides(offset, sign, size, bound):
    before = measured(offset, S, bound)
    after = measured(offset + sign * size, 2 * S, bound)
    alignment = combine(before, after)
    assert f"moved by {sign * size / 1e6:+.3f} ms" in alignment.stepped
    for true_offset in (offset - bound, offset + sign * size + sign * bound):
        found = 2 * S - alignment.on_rank_0(2 * S)
        assert abs(found - true_offset) <= alignment.bound_ns
