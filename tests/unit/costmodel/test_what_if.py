"""A step with something changed: what is said of it, and what it sends."""

import pytest

from scalebench.costmodel.replay import CommRequest
from scalebench.costmodel.step import StepShape
from scalebench.costmodel.what_if import AS_MEASURED, WhatIf, with_buckets

MIB = 2**20
ENDS_S = 0.12


def shape(*requests):
    return StepShape(requests, ENDS_S, 0.0, 32, {})


def bucket(size_bytes, ready_s):
    return CommRequest("all_reduce", size_bytes, ready_s, ENDS_S)


def test_where_nothing_changes_nothing_is_said_and_the_step_stays():
    step = shape(bucket(MIB, 0.08))
    assert AS_MEASURED.told() == [] and AS_MEASURED.shape(step) == step


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
    assert change.told() == [words]


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
