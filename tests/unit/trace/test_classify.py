"""Timelines of traces made by hand: what communicates, what copies, what computes."""

import pytest

from scalebench.errors import UsageError
from scalebench.trace.intervals import length, subtract
from scalebench.trace.operations.classify import timeline_of
from tests.builders.tracing.traces import US, Event, annotation, events, kernel, launch, op
from tests.examples import cases

GEMM = "ampere_sgemm_128x64_tn"
GENERIC = "ncclDevKernel_Generic(ncclDevComm*, unsigned long, ncclWork*)"


def only(timeline):
    (operation,) = timeline.operations
    return operation


@cases(
    "name",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_Broadcast_RING_LL(ncclDevComm*, unsigned long, ncclWork*)",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
)
def test_a_kernel_of_nccl_that_only_copies_is_communication(name):
    copying = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>"
    timeline = timeline_of(events(kernel(name, 0, 10), kernel(copying, 5, 20)))
    assert length(timeline.communication) == 10 * US
    assert length(timeline.compute) == 15 * US
    assert length(timeline.copies) == 0


def memcpy(start, end, correlation, stream=20):
    return Event("gpu_memcpy", "Memcpy PtoP (Device -> Device)", start, end, stream, correlation)


def gathered(*copies, **more):
    """An all-gather for which NCCL asks copy engines: two copies, asked for within it."""
    sizes = {"Input Dims": [[50]], "Input type": ["float"]}
    return (
        annotation("nccl:_all_gather_base", 10, 30, **sizes),
        launch(12, correlation=5),
        launch(14, correlation=6),
        memcpy(40, 50, 5),
        memcpy(52, 70, 6),
        kernel(GEMM, 0, 45),
        *copies,
    )


def test_a_collective_that_nccl_carries_out_by_copies_is_communication():
    """NCCL of one rank copies, and from 2.28 on it may ask copy engines instead of a kernel."""
    timeline = timeline_of(events(*gathered()))
    found = only(timeline)
    assert (found.kind, found.start_ns, found.end_ns) == ("all_gather", 40 * US, 70 * US)
    assert found.enqueued_ns == 12 * US and found.stream == 20
    assert length(timeline.copies) == 0
    assert length(timeline.compute) == 45 * US


@cases(
    "name, dtype, given, received, num_bytes",
    ("_allgather_base", "BFloat16", 100, 400, 800),
    ("_reduce_scatter_base", "Half", 400, 100, 800),
    ("all_to_allv", "Byte", 30, 70, 30),
    ("broadcast", "Long", 5, 5, 40),
    ("recv", "Int", 0, 8, 32),
    ("barrier", "Byte", 1, 1, 0),
    ("allreduce", "NoSuchType", 5, 5, None),
)
def test_bytes_are_of_the_full_size(name, dtype, given, received, num_bytes):
    details = {
        "Collective name": name,
        "In msg nelems": str(given),  # some versions write text
        "Out msg nelems": received,
        "dtype": dtype,
    }
    assert only(timeline_of(events(kernel(GENERIC, 0, 10, **details)))).num_bytes == num_bytes


def test_a_codec_on_a_gpu_takes_as_long_as_its_kernels_and_not_as_their_asking():
    timeline = timeline_of(
        events(
            annotation("scalebench.encode", 0, 10),
            annotation("scalebench.decode", 20, 30, thread=2),
            launch(2, 1),
            launch(8, 2),
            launch(12, 3),
            launch(22, 4, thread=2),
            launch(22, 5),  # beside the decoding, on another thread
            kernel("quantise", 40, 90, correlation=1),
            kernel("pack", 95, 100, correlation=2),
            kernel("gemm", 100, 200, correlation=3),
            kernel("unpack", 200, 230, correlation=4),
            kernel("gemm", 230, 300, correlation=5),
        )
    )
    assert (timeline.annotations["encode"] / US).tolist() == [[40, 90], [95, 100]]
    assert (timeline.annotations["decode"] / US).tolist() == [[200, 230]]


def test_a_group_of_less_than_one_rank_is_not_known():
    told = {"Collective name": "allreduce", "In msg nelems": 4, "dtype": "Float", "Group size": -1}
    operation = only(timeline_of(events(kernel(GENERIC, 0, 10, **told), kernel(GEMM, 0, 10))))
    assert (operation.kind, operation.num_bytes, operation.group_size) == ("all_reduce", 16, None)


def test_a_trace_whose_device_has_no_categories_is_refused():
    """As Ascend's profiler writes it: what its device did is neither shown nor zero."""
    hcom = Event("other", "hcom_allReduce__617_0", 5, 25)
    with pytest.raises(UsageError, match="Ascend's profiler"):
        timeline_of(events(op("aten::mm", 0, 5), hcom))


def test_nccl_without_a_gpu_in_the_trace_is_refused():
    with pytest.raises(UsageError, match=r"ProfilerActivity\.CUDA"):
        timeline_of(events(annotation("nccl:all_reduce", 0, 10), op("aten::mm", 0, 5)))


def test_what_gloo_copies_inside_a_collective_is_no_computation():
    timeline = timeline_of(
        events(
            op("aten::mm", 0, 10),
            annotation("gloo:all_gather", 5, 50, thread=2),
            op("aten::copy_", 20, 45, thread=2),
            op("aten::mul", 30, 34),  # the training thread computes meanwhile
            op("aten::copy_", 60, 65, thread=2),  # after the collective: nothing is known of it
        )
    )
    assert length(timeline.compute) == (10 + 4 + 5) * US


def test_computing_while_a_message_is_on_its_way_is_computation():
    """Sends and receives are annotated on the thread that asked for them."""
    timeline = timeline_of(
        events(annotation("gloo:recv", 0, 50), op("aten::mm", 10, 30), op("aten::mm", 60, 70))
    )
    assert length(timeline.compute) == 30 * US


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
