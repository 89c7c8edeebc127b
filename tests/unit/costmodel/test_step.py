"""A step's shape where its computation takes longer: everything moves, nothing falls out."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scalebench.costmodel.replay import CommRequest, replay
from scalebench.costmodel.step import StepShape

MOMENTS = st.floats(0, 1)


@example(moments=[], factor=1.0, num_samples=8)
@given(
    moments=st.lists(st.tuples(MOMENTS, MOMENTS), max_size=6),
    factor=st.floats(0.2, 5.0),
    num_samples=st.sampled_from((8, 16)),
)
def test_a_slowed_step_is_as_much_longer_and_can_be_replayed(
    moments: list[tuple[float, float]], factor: float, num_samples: int
) -> None:
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


def test_a_part_of_the_batch_that_was_shorter_than_the_optimizer_can_be_predicted_from() -> None:
    """Noise does it where the model is tiny; the batch's share of the step is nothing then."""
    requests = (CommRequest("all_reduce", 100, 0.1, 0.15),)
    shape = StepShape(requests, 0.2, 0.8, 16, {8: 0.7})
    for factor in (1.0, 1.3):
        slowed = shape.slowed(factor, 8)
        again = slowed.with_batch(8)
        assert again.computing_s == pytest.approx(factor * 0.7)
        assert again.batch_s == 0
        replay(again.requests, [0.0], again.computing_s)  # raises what is out of order
