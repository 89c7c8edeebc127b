"""Timelines of traces made by hand; every total was worked out on paper."""

from pathlib import Path

import pytest

from scalebench.errors import UsageError
from scalebench.trace.classify import timeline_of
from scalebench.trace.intervals import intersect, length, subtract
from scalebench.trace.kineto import read_kineto
from tests.builders.traces import US, Event, annotation, events, kernel, launch, op

GEMM = "ampere_sgemm_128x64_tn"
REDUCE_217 = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)"
REDUCE_219 = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
GENERIC = "ncclDevKernel_Generic(ncclDevComm*, unsigned long, ncclWork*)"


def only(timeline):
    (operation,) = timeline.operations
    return operation


@pytest.mark.parametrize("nccl", [REDUCE_217, REDUCE_219, GENERIC])
def test_totals_of_overlapping_kernels(nccl):
    timeline = timeline_of(
        events(
            kernel(GEMM, 0, 100),
            kernel(GEMM, 90, 150, stream=9),  # runs beside the first: 150 in all
            kernel(nccl, 120, 200, stream=20),
            kernel(nccl, 180, 230, stream=21),  # beside the other: 110 in all
            kernel(GEMM, 220, 225),
            Event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 240, 250),
            Event("gpu_memset", "Memset (Device)", 245, 255),
        )
    )
    communication = timeline.communication
    assert timeline.on_gpu
    assert len(timeline.operations) == 2
    assert length(communication) == 110 * US
    assert length(timeline.compute) == 155 * US
    assert length(intersect(communication, timeline.compute)) == (30 + 5) * US
    assert length(subtract(communication, timeline.compute)) == 75 * US
    assert length(timeline.copies) == 15 * US
    assert timeline.extent == (0, 255 * US)


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


METADATA = {
    "Collective name": "allreduce",
    "In msg nelems": 1000,
    "Out msg nelems": 1000,
    "dtype": "Float",
    "Group size": 4,
    "Process Group Name": "dp",
    "Process Group Ranks": "[0, 1, 2, 3]",
    "Seq": 17,
}


def test_metadata_on_the_kernel():
    found = only(timeline_of(events(kernel(GENERIC, 0, 10, **METADATA))))
    assert found.kind == "all_reduce"
    assert found.num_bytes == 4000
    assert found.dtype == "float32"
    assert (found.group, found.group_size, found.sequence) == ("dp", 4, 17)
    assert found.enqueued_ns is None
    assert found.phase == "unknown"


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


def test_kernels_that_may_communicate_are_compute_and_are_listed():
    timeline = timeline_of(
        events(
            kernel("gemm_all_reduce_kernel", 0, 10),
            kernel("gemm_all_reduce_kernel", 20, 25),
            kernel(GEMM, 30, 40),
        )
    )
    assert timeline.operations == ()
    assert length(timeline.compute) == 25 * US
    assert timeline.unknown == {"gemm_all_reduce_kernel": pytest.approx(15e-6)}


GLOO = {"Input Dims": [[1000]], "Input type": ["float"]}


def test_totals_on_the_cpu():
    timeline = timeline_of(
        events(
            op("aten::linear", 0, 50),
            op("aten::addmm", 10, 40),
            op("autograd::engine::evaluate_function: AddmmBackward0", 60, 200),
            op("AddmmBackward0", 65, 195),
            op("aten::mm", 70, 100),
            op("c10d::allreduce_", 100, 110),
            op("aten::mm", 130, 150),
            annotation("gloo:all_reduce", 105, 205, thread=2, **GLOO),
            annotation("ProfilerStep#3", 0, 210),
            annotation("scalebench.step", 0, 100),
            annotation("scalebench.step", 150, 160),
            Event("other", "PyTorch Profiler (0)", -500, 900),
        )
    )
    found = only(timeline)
    assert not timeline.on_gpu
    assert length(timeline.compute) == (50 + 30 + 20) * US
    assert length(timeline.communication) == 100 * US
    assert length(intersect(timeline.communication, timeline.compute)) == 20 * US
    assert (found.kind, found.num_bytes, found.dtype) == ("all_reduce", 4000, "float32")
    assert (found.enqueued_ns, found.phase, found.stream) == (100 * US, "backward", 2)
    assert timeline.steps.tolist() == [[0, 210 * US]]
    assert {name: length(marks) for name, marks in timeline.annotations.items()} == {
        "step": 110 * US
    }
    assert timeline.extent == (0, 210 * US)


def test_phases():
    timeline = timeline_of(
        events(
            annotation("gloo:barrier", 1, 2, thread=2),
            op("aten::linear", 10, 20),
            op("aten::addmm", 11, 19),
            annotation("gloo:barrier", 21, 22, thread=2),
            op("autograd::engine::evaluate_function: MmBackward0", 30, 40),
            op("aten::mm", 31, 39),
            annotation("gloo:barrier", 45, 46, thread=2),
            annotation("FSDP::post_backward_reduce (layers.0)", 50, 60),
            op("aten::cat", 51, 53),
            annotation("gloo:barrier", 54, 55, thread=2),
            annotation("gloo:all_gather", 61, 64, thread=2),
            op("aten::copy_", 62, 63, thread=2),  # the gathered parts, by gloo's thread
            annotation("gloo:barrier", 65, 66, thread=2),
            annotation("Optimizer.step#SGD.step", 70, 80),
            op("aten::add_", 71, 72),
            annotation("gloo:barrier", 75, 76, thread=2),
            annotation("Optimizer.zero_grad#SGD.zero_grad", 85, 90),
            op("aten::zero_", 86, 87),
            annotation("gloo:barrier", 88, 89, thread=2),
            annotation("FSDP::pre_forward (layers.0)", 100, 110),
            annotation("gloo:barrier", 105, 106, thread=2),
        )
    )
    assert [o.phase for o in timeline.operations] == [
        "unknown", "forward", "backward", "backward", "backward", "backward",
        "optimizer", "optimizer", "forward",
    ]  # fmt: skip


def test_nccl_without_a_gpu_in_the_trace_is_refused():
    with pytest.raises(UsageError, match=r"ProfilerActivity\.CUDA"):
        timeline_of(events(annotation("nccl:all_reduce", 0, 10), op("aten::mm", 0, 5)))


GOLDEN = Path(__file__).parents[2] / "golden" / "traces"

ASKED_FOR = [  # as tests/golden/traces/README.md tells it; 4 bytes an element
    *8 * [("all_reduce", 513 * 512 * 4)],
    ("all_reduce", 4000), ("all_gather", 8000), ("all_gather", 8000), ("reduce_scatter", 4000),
    ("broadcast", 4000), ("barrier", 0), ("reduce", 4000), ("all_to_all", 4000), ("all_to_all", 80),
    ("gather", 4000), ("scatter", 8000), ("send", 2000), ("recv", 4000), ("all_reduce", 4000),
    ("all_reduce", 8000), ("all_gather", 2 * 8), ("all_gather", 2 * 21), ("send", 4000),
    ("recv", 8000), ("reduce_scatter", 2000), ("reduce_scatter", 2000), ("all_reduce", 6000),
]  # fmt: skip


def test_every_operation_over_gloo_as_torch_recorded_it():
    timeline = timeline_of(read_kineto(GOLDEN / "gloo_2ranks_rank0.json.gz"))
    by_request = sorted(timeline.operations, key=lambda op: op.enqueued_ns)
    assert [(op.kind, op.num_bytes) for op in by_request] == ASKED_FOR
    assert [op.phase for op in by_request[:8]] == ["backward"] * 8
    assert all(op.group == "0" and op.group_size == 2 for op in by_request)
    assert {op.dtype for op in by_request if op.kind == "send"} == {"bfloat16", "float32"}
    assert len(timeline.steps) == 2
    (during,) = timeline.annotations["colls"]
    assert sum(during[0] <= op.enqueued_ns < during[1] for op in by_request) == len(ASKED_FOR) - 8


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
