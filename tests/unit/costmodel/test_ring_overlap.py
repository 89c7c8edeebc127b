"""What a ring hides behind its turns: the messages of the law, each needed a turn later."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.costmodel.context_layers import AttendingModel, operations_of_context_step
from scalebench.costmodel.replay import replay
from scalebench.costmodel.ring_overlap import (
    Turns,
    ring_requests,
)
from scalebench.spec import Context

TURNS = Turns(forward_s=1.0, backward_s=2.0)
ranks = st.sampled_from([2, 3, 4, 8])


def model(layers=2, again=0):
    return AttendingModel((4800,) * layers, (4800,) * again, 100, samples=2)


def stalled_s(num_ranks, message_s, layers=2):
    step_s = layers * num_ranks * 3.0 + 1
    requests = ring_requests(model(layers), num_ranks, 2, TURNS, step_s)
    return replay(requests, [message_s] * len(requests), step_s).stalled_s


@given(ranks, st.integers(0, 2))
def test_the_messages_are_those_of_the_law(num_ranks, again):
    law = operations_of_context_step(Context(method="ring"), model(2, again), num_ranks, 2)
    found = ring_requests(model(2, again), num_ranks, 2, TURNS, 1000.0)
    wanted = Counter(op.num_bytes for op in law if op.op == "send_recv_ring")
    assert Counter(request.size_bytes for request in found) == wanted
    assert {(one.op, one.num_ranks) for one in found} == {("send_recv_ring", num_ranks)}


@given(ranks)
def test_what_is_shorter_than_a_turn_is_hidden_but_for_the_last_gradients(num_ranks):
    assert stalled_s(num_ranks, 0.5) == pytest.approx(2 * 0.5)


def test_two_ranks_by_hand():
    # Forward: a message of 1.5 over a turn of 1. Backward: the same over a turn of 2, hidden; the
    # gradients behind the last turn are not.
    assert stalled_s(2, 1.5, layers=1) == pytest.approx(0.5 + 1.5)


@given(ranks, st.floats(0.01, 10))
def test_longer_turns_never_wait_longer(num_ranks, message_s):
    step_s = 1000.0
    took = []
    for turns in (TURNS, TURNS.slowed(2.0)):
        requests = ring_requests(model(), num_ranks, 2, turns, step_s)
        took.append(replay(requests, [message_s] * len(requests), step_s).stalled_s)
    assert took[1] <= took[0] + 1e-9
