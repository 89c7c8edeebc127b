"""Whose turn it is: every launch once a cycle, in random order, one at a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.worker.process.token import Token, next_slot, order_of_cycle


def walk(num_launches, seed, turns_of):
    cycle, place = 0, order_of_cycle(0, num_launches, seed)[0]
    taken = [0] * num_launches
    left: list[int] = []
    walked = []
    while True:
        walked.append((cycle, place))
        taken[place] += 1
        if taken[place] == turns_of[place]:
            left.append(place)
        following = next_slot(cycle, place, left, num_launches, seed)
        if following is None:
            return walked
        cycle, place = following


@given(turns_of=st.lists(st.integers(1, 6), min_size=1, max_size=8), seed=st.integers(0, 1000))
def test_every_launch_has_one_turn_in_each_cycle_until_it_leaves(turns_of, seed):
    walked = walk(len(turns_of), seed, turns_of)
    for place, count in enumerate(turns_of):
        assert [cycle for cycle, who in walked if who == place] == list(range(count))


def test_a_launch_that_never_comes_is_waited_for_within_the_limit(tmp_path):
    first = order_of_cycle(0, 2, seed=3)[0]
    with Token(tmp_path, first, 2, seed=3, limit_s=0.2) as token:
        token.wait()
        with pytest.raises(TimeoutError, match=f"launch {1 - first} did not take its turn"):
            token.pass_on()
