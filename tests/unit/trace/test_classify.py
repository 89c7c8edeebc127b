"""Timelines of traces made by hand: what communicates, what copies, what computes."""

import pytest

from scalebench.errors import UsageError
from scalebench.trace.classify import timeline_of
from scalebench.trace.intervals import length, subtract
from tests.builders.traces import US, annotation, events, kernel, op

GENERIC = "ncclDevKernel_Generic(ncclDevComm*, unsigned long, ncclWork*)"


def only(timeline):
    (operation,) = timeline.operations
    return operation


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_Broadcast_RING_LL(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
    ],
)
def test_a_kernel_of_nccl_that_only_copies_is_communication(name):
    copying = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>"
    timeline = timeline_of(events(kernel(name, 0, 10), kernel(copying, 5, 20)))
    assert length(timeline.communication) == 10 * US
    assert length(timeline.compute) == 15 * US
    assert length(timeline.copies) == 0


@pytest.mark.parametrize(
    ("name", "dtype", "given", "received", "num_bytes"),
    [
        ("_allgather_base", "BFloat16", 100, 400, 800),
        ("_reduce_scatter_base", "Half", 400, 100, 800),
        ("all_to_allv", "Byte", 30, 70, 30),
        ("broadcast", "Long", 5, 5, 40),
        ("recv", "Int", 0, 8, 32),
        ("barrier", "Byte", 1, 1, 0),
        ("allreduce", "NoSuchType", 5, 5, None),
    ],
)
def test_bytes_are_of_the_full_size(name, dtype, given, received, num_bytes):
    details = {
        "Collective name": name,
        "In msg nelems": str(given),  # some versions write text
        "Out msg nelems": received,
        "dtype": dtype,
    }
    assert only(timeline_of(events(kernel(GENERIC, 0, 10, **details)))).num_bytes == num_bytes


def test_nccl_without_a_gpu_in_the_trace_is_refused():
    with pytest.raises(UsageError, match=r"ProfilerActivity\.CUDA"):
        timeline_of(events(annotation("nccl:all_reduce", 0, 10), op("aten::mm", 0, 5)))


def test_an_operator_that_waits_for_a_collective_does_not_compute_meanwhile():
    """As an addition of DTensors does: its argument is still to be summed over the ranks."""
    timeline = timeline_of(
        events(
            op("aten::mm", 0, 10),
            op("aten::add", 10, 60),
            op("_c10d_functional::wait_tensor", 15, 50),
            op("aten::add", 51, 59),
            annotation("gloo:all_reduce", 12, 49, thread=2),
            op("aten::mul", 30, 34, thread=3),  # another thread computes meanwhile
        )
    )
    assert length(timeline.compute) == (15 + 10 + 4) * US
    exposed = subtract(timeline.communication, timeline.compute)
    assert length(exposed) == (49 - 15 - 4) * US
