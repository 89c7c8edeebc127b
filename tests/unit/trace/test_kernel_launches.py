"""Who asked for a kernel: the call that launched it, and what stood around the call."""

import pytest

from scalebench.trace.kernel_launches import find_launches
from tests.builders.traces import US, annotation, events, kernel, launch, op

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def launches_of(trace):
    return find_launches(trace, trace.of("kernel"))


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
