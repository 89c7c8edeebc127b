"""Who asked for a kernel: the call that launched it, and what stood around the call."""

import numpy as np
import pytest

from scalebench.trace.classify import timeline_of
from scalebench.trace.kernel_launches import NEVER, KernelLaunches, Launch, find_launches
from tests.builders.traces import US, annotation, events, kernel, launch, op

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def launches_of(trace):
    return find_launches(trace, trace.of("kernel"))


def test_what_surrounds_no_launch_is_none_and_not_the_last_event():
    nothing, first = np.array([-1]), np.array([0])
    assert KernelLaunches(first, nothing, nothing, nothing).of(0) == Launch(None, None, None)
    assert KernelLaunches(first, first, first, first).of(0) == Launch(0, 0, 0)


def test_a_kernel_without_a_call_knows_nothing_of_an_annotation_elsewhere():
    trace = events(kernel("ncclDevKernel_Generic", 5, 9), annotation("nccl:all_gather", 20, 30))
    (operation,) = timeline_of(trace).operations
    assert (operation.kind, operation.enqueued_ns) == ("unknown", None)


@pytest.mark.parametrize(
    ("launched", "found"), [(9, False), (10, True), (15, True), (20, True), (21, False)]
)
def test_an_event_that_shares_the_external_id_counts_if_the_launch_lies_in_it(launched, found):
    """The annotation is around the event, not around the launch: only the event leads to it."""
    identity = {"External id": 77}
    trace = events(
        op("aten::add", 10, 20, thread=2, **identity),
        annotation("nccl:all_reduce", 8, 30, thread=2),
        launch(launched, 5),
        kernel(NCCL, 40, 50, 5, **identity),
    )
    launches = launches_of(trace)
    assert (launches.of(0).annotation == 1) == found
    assert launches.asked_ns[0] == (10 if found else launched) * US


def test_a_correlation_of_zero_ties_a_kernel_to_no_call():
    asked = launches_of(events(launch(10, 0), launch(20, 5), kernel(NCCL, 40, 50, 0))).asked_ns
    assert asked.tolist() == [NEVER]
    asked = launches_of(events(launch(10, 0), launch(20, 5), kernel(NCCL, 40, 50, 5))).asked_ns
    assert asked.tolist() == [20 * US]
