"""A step's shape on other batches, and what its messages make of it, worked out by hand."""

import math

import numpy as np
import pytest

from scalebench.costmodel.links.times import LinkTime
from scalebench.costmodel.replay import CommRequest, Replayed, replay
from scalebench.costmodel.step import PredictedStep, StepShape, predict_step

EARLY = CommRequest("all_gather", 300, 0.4, 0.4, 3)
LATE = CommRequest("all_reduce", 500, 0.6, 0.9)


def test_moments_move_with_the_batch_and_those_behind_it_with_its_end():
    """0.8 s of batch become 0.4; 0.1 s behind them stay 0.1 s behind them."""
    moved = StepShape((EARLY, LATE), 0.8, 0.2, 16, {8: 0.6}).lasting(0.6, 8)
    assert [(r.ready_s, r.needed_s) for r in moved.requests] == [
        pytest.approx((0.2, 0.2)),
        pytest.approx((0.3, 0.5)),
    ]
    assert [r[:2] for r in moved.requests] == [("all_gather", 300), ("all_reduce", 500)]
    assert (moved.batch_s, moved.fixed_s, moved.num_samples) == (pytest.approx(0.4), 0.2, 8)
    assert (moved.part_step_s, moved.computing_s) == ({8: 0.6}, pytest.approx(0.6))


def test_a_step_shorter_than_the_optimizer_is_all_optimizer():
    moved = StepShape((EARLY,), 0.8, 0.2, 16).lasting(0.1, 2)
    assert (moved.batch_s, moved.fixed_s) == (0.0, 0.1)
    assert (moved.requests[0].ready_s, moved.requests[0].needed_s) == (0.0, 0.0)


def test_a_step_without_a_batch_can_be_given_one():
    begin = CommRequest("all_reduce", 5, 0.0, 0.3)
    moved = StepShape((begin,), 0.0, 0.5, 16).lasting(0.7, 8)
    assert (moved.batch_s, moved.fixed_s) == (pytest.approx(0.2), 0.5)
    (request,) = moved.requests
    assert (request.ready_s, request.needed_s) == (0.0, pytest.approx(0.5))


def test_a_slowed_step_is_longer_everywhere_and_forgets_what_was_measured():
    slowed = StepShape((EARLY, LATE), 0.8, 0.2, 16, {8: 0.6}).slowed(1.5, 16)
    assert [(r.ready_s, r.needed_s) for r in slowed.requests] == [
        pytest.approx((0.6, 0.6)),
        pytest.approx((0.9, 1.35)),
    ]
    assert (slowed.batch_s, slowed.fixed_s) == pytest.approx((1.2, 0.3))
    assert (slowed.part_step_s, slowed.num_samples) == ({}, 16)


def test_what_is_needed_at_the_end_is_needed_no_later_when_all_is_slowed():
    """0.1 · (1.0 + 0.7) is a last digit more than 0.1 · 1.0 + 0.1 · 0.7."""
    request = CommRequest("all_reduce", 5, 0.1, 1.0 + 0.7)
    slowed = StepShape((request,), 1.0, 0.7, 4).slowed(0.1, 4)
    assert 0.1 * (1.0 + 0.7) > 0.1 * 1.0 + 0.1 * 0.7
    assert slowed.requests[0].needed_s == slowed.computing_s == 0.1 * 1.0 + 0.1 * 0.7


@pytest.mark.parametrize(("samples", "expected_s"), [(16, 1.0), (8, 0.6), (40, 2.2), (2, 0.3)])
def test_with_one_batch_measured_the_batch_is_in_proportion(samples, expected_s):
    assert StepShape((), 0.8, 0.2, 16).computing_of(samples) == pytest.approx(expected_s)


@pytest.mark.parametrize(("samples", "expected_s"), [(16, 1.0), (8, 0.7), (24, 1.3), (4, 0.55)])
def test_with_two_batches_measured_others_are_on_their_line(samples, expected_s):
    """0.4 s and 0.0375 s for each sample, whatever the optimizer takes."""
    shape = StepShape((), 0.8, 0.2, 16, {8: 0.7})
    assert shape.computing_of(samples) == pytest.approx(expected_s)
    assert shape.with_batch(samples).computing_s == pytest.approx(expected_s)


def test_the_line_through_many_batches_weighs_relative_errors():
    known = {1: 1.0, 2: 2.2, 4: 2.9, 16: 9.0}
    shape = StepShape((), 9.0, 0.0, 16, {n: s for n, s in known.items() if n != 16})
    rows = [[1 / seconds, n / seconds] for n, seconds in known.items()]
    fixed, each = np.linalg.lstsq(np.array(rows), np.ones(4), rcond=None)[0]
    assert fixed > 0 < each
    assert shape.computing_of(10) == pytest.approx(fixed + 10 * each)


def test_no_batch_takes_less_than_no_time():
    """Through 0.5 s at one sample and 2 s at two: 0.6 s for each has the least relative errors."""
    shape = StepShape((), 2.0, 0.0, 2, {1: 0.5})
    assert shape.computing_of(10) == pytest.approx(6.0)


def test_a_predicted_step_by_hand():
    """Among 5 ranks; the first message is among 3 and waited for, of the second half is hidden."""
    asked = []

    def link(op, num_ranks, size_bytes):
        asked.append((op, num_ranks, size_bytes))
        takes = size_bytes / 1000
        outside = "small" if num_ranks == 3 else None
        return LinkTime(takes, 0.5 * takes, 2 * takes, (num_ranks, 2), outside, float(num_ranks))

    twice = LATE._replace(ready_s=0.7)
    shape = StepShape((EARLY, LATE, twice), 0.8, 0.2, 16)
    step = predict_step(shape, link, 5, 16)
    assert asked == [("all_gather", 3, 300), ("all_reduce", 5, 500)]  # each sort once
    # The gather stalls for 0.3 s; the reductions run from 0.9 to 1.9; at 0.9 + 0.3 they are needed.
    assert step.step_s == pytest.approx(1.0 + 0.3 + 0.7)
    assert step.stalled_s == pytest.approx(1.0)
    # 0.15 s; from 0.75 to 1.25, needed at 1.05.
    assert step.low_s == pytest.approx(1.0 + 0.15 + 0.2)
    # 0.6 s; from 1.2 to 3.2, needed at 1.5.
    assert step.high_s == pytest.approx(1.0 + 0.6 + 1.7)
    assert step.computing_s == pytest.approx(1.0)
    assert step.requests == shape.with_batch(16).requests
    assert [time.time_s for time in step.times] == [0.3, 0.5, 0.5]
    assert (step.world_sizes, step.outside, step.link_dof) == ((2, 3, 5), ("small",), 3.0)
    assert step.bubble_s == 0.0


def test_a_step_without_messages_is_its_computation():
    step = predict_step(StepShape((), 0.5, 0.25, 16), None, 5, 8)
    assert step == PredictedStep(0.5, 0.5, 0.5, 0.5, 0.0, (), (), ())
    assert (step.link_dof, step.bubble_s) == (math.inf, 0.0)
    assert step.longer(0.5).high_s == pytest.approx(1.0)


def test_a_replay_by_hand():
    requests = (EARLY, LATE, LATE._replace(ready_s=0.7, needed_s=1.0))
    assert replay(requests, [0.125, 0.25, 0.5], 1.0) == Replayed(
        step_s=pytest.approx(1.475),
        stalled_s=pytest.approx(0.475),
        spans_s=(
            pytest.approx((0.4, 0.525)),
            pytest.approx((0.725, 0.975)),
            pytest.approx((0.975, 1.475)),
        ),
    )


def test_every_request_takes_its_own_time():
    with pytest.raises(ValueError, match="shorter"):
        replay((EARLY, LATE), [0.1], 1.0)


@pytest.mark.parametrize(
    "moments", [[(-0.5, 0.5)], [(0.5, 0.6), (0.4, 0.6)], [(0.5, 0.4)], [(0.5, 1.5)]]
)
def test_moments_outside_of_the_step_or_out_of_order_are_refused(moments):
    requests = [CommRequest("all_reduce", 1, *pair) for pair in moments]
    with pytest.raises(ValueError, match="in order"):
        replay(requests, [0.0] * len(requests), 1.0)


def test_moments_at_both_ends_of_the_step_fit():
    requests = [
        CommRequest("all_reduce", 1, *pair) for pair in ((0.0, 0.0), (0.0, 1.0), (1.0, 1.0))
    ]
    assert replay(requests, [0.0] * 3, 1.0).step_s == 1.0
