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


def test_a_bucket_is_so_many_mebibytes():
    step = shape(bucket(4 * MIB, 0.08))
    made = WhatIf(bucket_mb=1.5).shape(step)
    assert [request.size_bytes for request in made.requests] == [3 * MIB // 2, 3 * MIB // 2, MIB]
    assert made == with_buckets(step, 1.5 * MIB)


def test_gradients_that_are_ready_before_a_third_of_the_way_are_ready_at_once():
    """8 bytes at 20 ms and 8 at 100 ms, in fours."""
    made = with_buckets(shape(bucket(8, 0.02), bucket(8, 0.10)), 4)
    assert [request.size_bytes for request in made.requests] == [4, 4, 4, 4]
    ready = [request.ready_s for request in made.requests]
    assert ready == pytest.approx([0.02, 0.02, 0.06, 0.10])
    assert {request.needed_s for request in made.requests} == {ENDS_S}


def test_a_few_bytes_are_ready_evenly_from_a_third_on():
    """Backward begins at 40 ms; 10 bytes are ready at 100 ms: 4 at 64, 8 at 88 ms."""
    made = with_buckets(shape(bucket(10, 0.10)), 4)
    assert [(r.op, r.size_bytes) for r in made.requests] == [("all_reduce", n) for n in (4, 4, 2)]
    assert [r.ready_s for r in made.requests] == pytest.approx([0.064, 0.088, 0.1])


def test_gradients_without_bytes_stay_one_bucket():
    (one,) = with_buckets(shape(bucket(0, 0.08)), 4).requests
    assert one.size_bytes == 0


def test_fewer_bits_than_were_measured_are_a_part_of_them_and_buckets_are_cut_first():
    made = WhatIf(gradient_bits=12, bucket_mb=1.0).shape(shape(bucket(MIB + 8, 0.08)), 16)
    assert [request.size_bytes for request in made.requests] == [3 * MIB // 4, 6]


def test_of_what_is_sent_besides_nothing_is_cut():
    inside = CommRequest("all_reduce", 50, 0.09, 0.10)
    gather = CommRequest("all_gather", 50, 0.11, ENDS_S)
    made = with_buckets(shape(bucket(8, 0.08), inside, gather), 4)
    assert [r.size_bytes for r in made.requests] == [4, 4, 50, 50]
    assert made.requests[2:] == (inside, gather)
