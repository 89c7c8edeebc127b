"""Who asked for a kernel, where the first event of a trace did, or one of several calls."""

import numpy as np
import pytest

from scalebench.trace.kernel_launches import (
    NEVER,
    collectives_by_copies,
    find_launches,
    runtime_calls,
)
from tests.builders.traces import US, Event, annotation, events, kernel, launch, op

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def launches_of(*rows):
    trace = events(*rows)
    return find_launches(trace, trace.of("kernel"))


def memcpy(start, end, correlation, stream=20):
    return Event("gpu_memcpy", "Memcpy PtoP (Device -> Device)", start, end, stream, correlation)


def test_the_call_of_each_kernel_is_that_with_its_number():
    trace = events(
        launch(30, 9, thread=3),
        launch(10, 5, thread=1),
        launch(20, 7, thread=2),
        Event("runtime", "cudaFree", 1, 2, 1, 0),
        Event("runtime", "cudaFree", 3, 4, 1, 1),
        *(kernel(NCCL, 40 + i, 50 + i, number) for i, number in enumerate((7, 6, 9, 99, 5, 1, -1))),
    )
    moments, threads = runtime_calls(trace, trace.of("kernel"))
    assert moments.tolist() == [20 * US, NEVER, 30 * US, NEVER, 10 * US, 3 * US, NEVER]
    assert threads.tolist() == [2, 0, 3, 0, 1, 1, 0]


def test_without_calls_no_moment_is_known():
    trace = events(kernel(NCCL, 40, 50, 7))
    moments, threads = runtime_calls(trace, trace.of("kernel"))
    assert (moments.tolist(), threads.tolist()) == ([NEVER], [0])


def test_what_the_call_tells_comes_before_the_external_id():
    """The first event of the trace is around the call; the operator began before it."""
    found = launches_of(
        annotation("nccl:all_reduce", 8, 30),
        op("c10d::allreduce_", 1, 40, **{"External id": 77}),
        launch(15, 5),
        kernel(NCCL, 40, 50, 5, **{"External id": 77}),
    )
    assert (found.annotation.tolist(), found.request.tolist()) == ([0], [1])
    assert found.asked_ns.tolist() == [1 * US]


def test_a_request_that_is_the_first_event_is_when_the_host_asked():
    found = launches_of(
        op("c10d::allreduce_", 2, 30),
        op("record_param_comms", 3, 29),
        annotation("nccl:all_reduce", 4, 28),
        launch(15, 5),
        kernel(NCCL, 40, 50, 5),
    )
    assert found.asked_ns.tolist() == [2 * US]
    assert [found.request[0], found.record[0], found.annotation[0]] == [0, 1, 2]


def test_an_annotation_on_the_stream_counts_where_the_host_has_none():
    projected = Event("gpu_user_annotation", "nccl:all_gather", 38, 60, 7)
    kernels = launch(15, 5), kernel(NCCL, 40, 50, 5)
    assert launches_of(projected, *kernels).annotation.tolist() == [0]
    on_host = annotation("nccl:all_reduce", 4, 28)
    assert launches_of(on_host, *kernels, projected).annotation.tolist() == [0]
    elsewhere = Event("gpu_user_annotation", "nccl:all_gather", 38, 60, 8)
    assert launches_of(*kernels, elsewhere).annotation.tolist() == [-1]


def test_an_id_that_is_the_correlation_means_nothing():
    found = launches_of(
        op("aten::add", 10, 20, **{"External id": 5}),
        annotation("nccl:all_reduce", 8, 30),
        kernel(NCCL, 40, 50, 5, **{"External id": 5}),
        kernel(NCCL, 60, 70, 6, **{"External id": 5}),
    )
    assert found.annotation.tolist() == [-1, 1]
    assert found.asked_ns.tolist() == [NEVER, 10 * US]


@pytest.mark.parametrize("with_kernel", [False, True])
def test_copies_belong_to_the_annotation_around_their_calls(with_kernel):
    """Two annotations with copies, the first event one of them, and a copy outside."""
    trace = events(
        annotation("nccl:_all_gather_base", 10, 30),
        annotation("nccl:broadcast", 50, 70),
        annotation("gloo:all_reduce", 80, 90),
        *(launch(at, number) for at, number in ((12, 1), (55, 2), (14, 3), (40, 4), (85, 6))),
        *(memcpy(100 + number, 101 + number, number) for number in (1, 2, 3, 4, 6)),
        launch(16, 5),
        kernel(NCCL, 200, 210, 5),
    )
    copies = trace.of("gpu_memcpy")
    kernels = trace.of("kernel") if with_kernel else trace.of("kernel")[:0]
    found = [one.tolist() for one in collectives_by_copies(trace, copies, kernels)]
    first, second, third, *_ = copies.tolist()
    assert found == ([[second]] if with_kernel else [[first, third], [second]])
    assert np.array_equal(trace.correlation[[first, second, third]], [1, 2, 3])
