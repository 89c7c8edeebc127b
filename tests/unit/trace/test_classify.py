"""Timelines of traces made by hand; every total was worked out on paper."""

from pathlib import Path

import numpy as np
import pytest

from scalebench.errors import UsageError
from scalebench.trace.classify import timeline_of
from scalebench.trace.intervals import intersect, length, subtract
from scalebench.trace.kineto import read_kineto
from scalebench.trace.metadata import from_annotation
from tests.builders.traces import US, Event, annotation, events, kernel, launch, op

GEMM = "ampere_sgemm_128x64_tn"
REDUCE_217 = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)"
REDUCE_219 = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
GENERIC = "ncclDevKernel_Generic(ncclDevComm*, unsigned long, ncclWork*)"
SENDRECV = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"


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


def test_other_copies_stay_copies():
    after = (launch(80, correlation=7), memcpy(90, 95, 7), Event("gpu_memset", "Memset", 97, 98))
    timeline = timeline_of(events(*gathered(*after)))
    assert len(timeline.operations) == 1
    assert length(timeline.copies) == 6 * US


def test_copies_around_a_kernel_of_nccl_are_torchs():
    """An all-gather into a list: NCCL's kernel, then torch copies what was gathered."""
    timeline = timeline_of(
        events(
            annotation("nccl:all_gather", 10, 30),
            launch(12, correlation=5),
            kernel(GENERIC, 40, 60, correlation=5),
            launch(14, correlation=6),
            memcpy(60, 65, 6),
            Event("gpu_memset", "Memset (Device)", 38, 39, 20, 5),
        )
    )
    assert only(timeline).end_ns == 60 * US
    assert length(timeline.copies) == 6 * US


def test_a_fill_and_the_copies_of_gloo_are_no_operations_of_their_own():
    """With one rank a barrier only fills its tensor; gloo copies from and to the GPU itself."""
    timeline = timeline_of(
        events(
            kernel(GEMM, 0, 5),
            annotation("nccl:barrier", 10, 30),
            launch(12, correlation=5),
            Event("gpu_memset", "Memset (Device)", 40, 41, 20, 5),
            annotation("gloo:all_reduce", 50, 90, thread=2),
            launch(52, correlation=6, thread=2),
            memcpy(54, 60, 6),
        )
    )
    found = only(timeline)
    assert (found.name, found.start_ns, found.end_ns) == ("gloo:all_reduce", 50 * US, 90 * US)
    assert length(timeline.copies) == 7 * US


def test_operations_of_kernels_and_of_copies_stand_in_the_order_of_their_start():
    earlier = (launch(1, correlation=8), kernel(REDUCE_219, 5, 20, correlation=8, stream=20))
    later = (launch(32, correlation=9), kernel(REDUCE_219, 80, 90, correlation=9, stream=20))
    timeline = timeline_of(events(*later, *gathered(), *earlier))
    assert [op.kind for op in timeline.operations] == ["all_reduce", "all_gather", "all_reduce"]


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


def test_metadata_on_the_host_only():
    found = only(
        timeline_of(
            events(
                op("aten::mm", 0, 5),
                op("c10d::allreduce_", 10, 30),
                op("record_param_comms", 12, 28, **METADATA),
                launch(20, correlation=5),
                kernel(GENERIC, 40, 60, correlation=5),
            )
        )
    )
    assert (found.kind, found.num_bytes, found.sequence) == ("all_reduce", 4000, 17)
    assert found.enqueued_ns == 10 * US
    assert found.phase == "forward"


def test_the_annotation_that_launched_it_is_surer_than_the_kernels_name():
    found = only(
        timeline_of(
            events(
                annotation(
                    "nccl:all_reduce", 10, 30, **{"Input Dims": [[3, 5]], "Input type": ["double"]}
                ),
                launch(20, correlation=5),
                kernel(SENDRECV, 40, 60, correlation=5),
            )
        )
    )
    assert (found.kind, found.num_bytes, found.dtype) == ("all_reduce", 120, "float64")
    assert found.enqueued_ns == 20 * US


@pytest.mark.parametrize(
    ("shape", "num_bytes"),
    [([3, 5], 60), (["3", "5"], 60), ([], 4), (7, None), (None, None), ("12", None), (["x"], None)],
)
def test_a_shape_that_is_no_list_of_numbers_has_no_size(shape, num_bytes):
    details = {"Input Dims": [shape], "Input type": ["float"]}
    assert from_annotation("nccl:all_reduce", details, 2).num_bytes == num_bytes


def test_size_of_an_all_gather_from_the_request_around_it():
    shapes = {"Input Dims": [[64], [16], []], "Input type": ["float", "float", ""]}
    given = {"Input Dims": [[16]], "Input type": ["float"]}
    rows = (
        op("c10d::_allgather_base_", 8, 32, **shapes),
        annotation("nccl:_all_gather_base", 10, 30, **given),
        launch(20, correlation=5),
        kernel(SENDRECV, 40, 60, correlation=5),
    )
    found = only(timeline_of(events(*rows)))
    assert (found.kind, found.num_bytes) == ("all_gather", 256)
    without_request = only(timeline_of(events(*rows[1:])))
    assert (without_request.kind, without_request.num_bytes) == ("all_gather", None)


def test_a_launch_on_another_thread_is_not_inside():
    found = only(
        timeline_of(
            events(
                annotation("nccl:all_reduce", 10, 30, thread=1),
                annotation("nccl:all_reduce", 1, 5, thread=2),
                launch(20, correlation=5, thread=2),
                kernel(GENERIC, 40, 60, correlation=5),
            )
        )
    )
    assert found.kind == "unknown"


def test_an_external_id_ties_where_no_call_was_traced():
    found = only(
        timeline_of(
            events(
                annotation("nccl:broadcast", 10, 30, **{"External id": 77}),
                kernel(GENERIC, 40, 60, 5, **{"External id": 77}),
            )
        )
    )
    assert found.kind == "broadcast"
    counted_apart = only(
        timeline_of(
            events(
                annotation("nccl:broadcast", 10, 30, **{"External id": 77}),
                kernel(GENERIC, 40, 60, 77, **{"External id": 77}),
            )
        )
    )
    assert counted_apart.kind == "unknown"
    elsewhere = only(
        timeline_of(
            events(
                annotation("nccl:broadcast", 10, 30, **{"External id": 77}),
                launch(35, correlation=5),
                kernel(GENERIC, 40, 60, 5, **{"External id": 77}),
            )
        )
    )
    assert elsewhere.kind == "unknown"


def test_an_annotation_projected_onto_the_stream():
    projected = Event("gpu_user_annotation", "nccl:all_reduce", 39, 61, 20)
    found = timeline_of(events(projected, kernel(GENERIC, 40, 60, stream=20)))
    assert only(found).kind == "all_reduce"


def test_what_nothing_tells_is_unknown():
    found = only(timeline_of(events(kernel(GENERIC, 40, 60))))
    assert (found.kind, found.num_bytes, found.group, found.phase) == (
        "unknown", None, None, "unknown",
    )  # fmt: skip


def test_point_to_point_in_one_launch_is_named_by_the_kernel():
    found = only(
        timeline_of(
            events(
                annotation("nccl:coalesced", 10, 30),
                launch(20, correlation=5),
                kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 40, 60, 5),
            )
        )
    )
    assert found.kind == "send_recv"


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


def test_the_kth_request_of_a_kind_belongs_to_the_kth_operation():
    timeline = timeline_of(
        events(
            op("c10d::allreduce_", 10, 12),
            op("c10d::broadcast_", 20, 22),
            op("c10d::allreduce_", 30, 32),
            annotation("gloo:all_reduce", 15, 100, thread=2, **GLOO),
            annotation("gloo:all_reduce", 60, 90, thread=3, **GLOO),
            annotation("gloo:broadcast", 95, 120, thread=3, **GLOO),
        )
    )
    asked = {(o.kind, o.start_ns // US): o.enqueued_ns for o in timeline.operations}
    assert asked == {
        ("all_reduce", 15): 10 * US,
        ("all_reduce", 60): 30 * US,
        ("broadcast", 95): 20 * US,
    }


def test_what_was_asked_for_before_the_trace_began_has_no_request():
    timeline = timeline_of(
        events(
            annotation("gloo:all_reduce", 0, 4000, thread=2, **GLOO),
            op("c10d::allreduce_", 5000, 5010),
            annotation("gloo:all_reduce", 5020, 6000, thread=2, **GLOO),
        )
    )
    assert [o.enqueued_ns for o in timeline.operations] == [None, 5000 * US]


def test_a_request_long_after_its_operation_is_none():
    timeline = timeline_of(
        events(
            op("c10d::allreduce_", 0, 10),
            annotation("gloo:all_reduce", 10, 20, thread=2, **GLOO),
            annotation("gloo:all_reduce", 30, 40, thread=2, **GLOO),
            op("c10d::allreduce_", 5000, 5010),
        )
    )
    assert [o.enqueued_ns for o in timeline.operations] == [0, None]


def test_gloo_carries_out_a_reduce_scatter_by_all_reduces():
    timeline = timeline_of(
        events(
            op("c10d::reduce_scatter_", 0, 5),  # of two tensors: one all-reduce each
            op("c10d::allreduce_", 10, 12),
            annotation("gloo:all_reduce", 1, 20, thread=2, **GLOO),
            annotation("gloo:all_reduce", 3, 21, thread=3, **GLOO),
            annotation("gloo:all_reduce", 22, 30, thread=2, **GLOO),
        )
    )
    assert [(o.kind, o.enqueued_ns) for o in timeline.operations] == [
        ("reduce_scatter", 0),
        ("reduce_scatter", 0),
        ("all_reduce", 10 * US),
    ]


def test_an_all_gather_over_gloo_needs_the_size_of_the_group():
    row = annotation("gloo:all_gather", 0, 10, thread=2, **GLOO)
    assert only(timeline_of(events(row))).num_bytes is None
    found = only(timeline_of(events(row, groups={"0": 4})))
    assert (found.num_bytes, found.group, found.group_size) == (16_000, "0", 4)


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


def test_gloo_on_tensors_of_a_gpu():
    timeline = timeline_of(
        events(kernel(GEMM, 0, 50), annotation("gloo:all_reduce", 40, 60, thread=2, **GLOO))
    )
    assert timeline.on_gpu
    assert length(intersect(timeline.communication, timeline.compute)) == 10 * US


def test_no_event_at_all():
    timeline = timeline_of(events())
    assert timeline.operations == ()
    assert timeline.extent == (0, 0)
    assert np.array_equal(timeline.communication, np.empty((0, 2)))


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


def test_the_other_rank_receives_what_the_first_sends():
    timeline = timeline_of(read_kineto(GOLDEN / "gloo_2ranks_rank1.json.gz"))
    transfers = [(o.kind, o.num_bytes) for o in timeline.operations if o.kind in ("send", "recv")]
    assert transfers == [("recv", 2000), ("send", 4000), ("send", 8000), ("recv", 4000)]
    (scatter,) = [o for o in timeline.operations if o.kind == "scatter"]
    assert scatter.num_bytes is None  # it hands nothing in, and the trace shows inputs only
    assert all(o.enqueued_ns is not None for o in timeline.operations)


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


def test_waiting_outside_of_operators_takes_nothing_off_them():
    timeline = timeline_of(
        events(op("aten::mm", 0, 10), op("_c10d_functional::wait_tensor", 10, 30))
    )
    assert length(timeline.compute) == 10 * US
