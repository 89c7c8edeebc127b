import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.costmodel.sharding import Balance, computing_s, divided, ideal_s
from tests.examples import cases


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=9), st.integers(0, 400), st.floats(1, 8))
def test_every_sample_is_given_and_no_rank_starves_or_gets_too_much(paces, more, most):
    total = len(paces) + more
    shares = divided(total, paces, most)
    assert sum(shares) == total
    assert min(shares) >= 1
    assert max(shares) <= max(most * total / len(paces), -(-total // len(paces)))


@given(st.lists(st.floats(0.01, 10), min_size=2, max_size=3), st.integers(0, 12))
def test_no_other_division_is_ready_earlier(paces, more):
    total = len(paces) + more
    found = computing_s(divided(total, paces, most=100), paces)
    every = itertools.product(range(1, total + 1), repeat=len(paces))
    assert found <= min(computing_s(s, paces) for s in every if sum(s) == total) * (1 + 1e-9)


@given(st.lists(st.floats(0.5, 1), min_size=2, max_size=8), st.integers(50, 500))
def test_constant_speeds_give_the_harmonic_mean_and_then_nothing_moves(paces, each):
    """Windows at any shares tell the same pace; a whole sample is at most 1/each of a share."""
    balance = Balance.equal(each * len(paces), len(paces))
    for _ in range(3):
        balance = balance.after(paces)
    ideal = ideal_s([pace * each for pace in paces])
    assert ideal * (1 - 1e-9) <= computing_s(balance.shares, paces) <= ideal * (1.03 + 3 / each)
    assert balance.after(paces).shares == balance.shares


@given(st.integers(2, 8), st.floats(1.2, 1.9), st.booleans())
def test_a_change_is_followed_within_eight_windows(world_size, factor, slower):
    before = [1.0] * world_size
    after = [factor if slower else 1 / factor, *before[1:]]
    balance = Balance.equal(100 * world_size, world_size).after(before)
    for _ in range(8):
        balance = balance.after(after)
    ideal = ideal_s([100 * pace for pace in after])
    assert computing_s(balance.shares, after) <= 1.06 * ideal
    assert not slower or balance.shares[0] < 100


@cases(
    "total, paces, said",
    *((1, [1, 1], "1 samples cannot be divided over 2 ranks"), (4, [1, 0], "times above zero")),
)
def test_what_cannot_be_divided_is_refused(total, paces, said):
    with pytest.raises(ValueError, match=said):
        divided(total, paces)
