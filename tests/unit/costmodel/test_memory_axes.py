"""What each dimension of a mesh takes off the memory of a rank."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.costmodel.memory import MemoryPrediction
from scalebench.costmodel.memory_axes import (
    Division,
    divided_part,
    in_flight_part,
    savings_of,
)

ONE = MemoryPrediction(400, 200, 600, 0, 1000, 50)


def test_each_dimension_acts_on_what_those_before_it_leave():
    shard, tensor = savings_of(
        ONE, [Division("shard", 2, 0.5, 0.5), Division("tensor", 4, 0.25, 1.0)]
    )
    assert (shard.state_bytes, shard.activations_bytes) == (600, 500)
    assert (tensor.state_bytes, tensor.activations_bytes) == (450, 0)


@given(
    st.lists(st.tuples(st.integers(1, 8), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=5)
)
def test_nothing_is_taken_off_twice(parts):
    divisions = [Division(f"axis {i}", *part) for i, part in enumerate(parts)]
    savings = savings_of(ONE, divisions)
    assert all(one.state_bytes >= 0 and one.activations_bytes >= 0 for one in savings)
    assert sum(one.state_bytes for one in savings) <= 1200 + 1e-6
    assert sum(one.activations_bytes for one in savings) <= 1000 + 1e-6


@pytest.mark.parametrize(
    ("schedule", "stage", "part"),
    [("gpipe", 0, 1.0), ("1f1b", 0, 0.5), ("1f1b", 3, 0.125), ("interleaved-1f1b", 0, None)],
)
def test_microbatches_that_a_stage_of_four_keeps_of_eight(schedule, stage, part):
    assert in_flight_part(schedule, stage, 4, 8) == part


def test_only_what_is_divided_gets_smaller():
    assert divided_part([(80, True), (20, False)], 4) == pytest.approx(0.4)
    assert divided_part([], 4) == 1.0
