import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from scalebench.errors import UsageError
from scalebench.trace.events import CATEGORIES, length, subtract
from scalebench.trace.files.kineto import read_kineto
from scalebench.trace.job import analyse_job, as_json
from scalebench.trace.operations import communication_kernels
from scalebench.trace.operations.classify import timeline_of
from scalebench.trace.operations.gpu_work import products_of, work_of
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


def test_a_collective_that_nccl_carries_out_by_copies_is_communication():
    """NCCL of one rank copies, and from 2.28 on it may ask copy engines instead of a kernel."""
    sizes = {"Input Dims": [[50]], "Input type": ["float"]}
    asked = annotation("nccl:_all_gather_base", 10, 30, **sizes), launch(12, 5), launch(14, 6)
    copies = (
        Event("gpu_memcpy", "Memcpy PtoP (Device -> Device)", *at, 20, n)
        for n, at in ((5, (40, 50)), (6, (52, 70)))
    )
    timeline = timeline_of(events(*asked, *copies, kernel(GEMM, 0, 45)))
    found = only(timeline)
    assert (found.kind, found.start_ns, found.end_ns) == ("all_gather", 40 * US, 70 * US)
    assert found.enqueued_ns == 12 * US and found.stream == 20
    assert length(timeline.copies) == 0
    assert length(timeline.compute) == 45 * US


@cases(
    "name, dtype, given, received, num_bytes",
    ("_allgather_base", "BFloat16", 100, 400, 800),
    *(("_reduce_scatter_base", "Half", 400, 100, 800), ("all_to_allv", "Byte", 30, 70, 30)),
    *(("broadcast", "Long", 5, 5, 40), ("recv", "Int", 0, 8, 32), ("barrier", "Byte", 1, 1, 0)),
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


GOLDEN = Path(__file__).parents[2] / "golden" / "traces"


@cases(
    "name, operator, kind",
    ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_nn", "aten::mm", "matmul"),
    ("nvjet_tst_128x256_64x4_1x2_h_bz_TNT", "", "matmul"),
    ("void cublasLt::splitKreduce_kernel<32, 16>", "aten::addmm", "matmul"),
    ("ampere_sgemm_128x64_nn", "aten::cudnn_convolution", "convolution"),
    ("cutlass_gemm", "aten::convolution_backward", "convolution"),
    ("void pytorch_flash::flash_fwd_kernel<T>", "aten::_flash_attention_forward", "attention"),
    ("vectorized_layer_norm_kernel<float>", "aten::native_layer_norm", "normalisation"),
    ("void cudnn::bn_bw_1C11_kernel_new<float>", "", "normalisation"),
    ("triton_poi_fused_convolution_native_layer_norm_0", "", "elementwise"),
    ("triton_red_fused_native_layer_norm_1", "", "normalisation"),
    ("void fbgemm_gpu::permute_2D_data_kernel<false>", "fbgemm::permute", "other"),
    ("void at::native::reduce_kernel<512>", "aten::linalg_vector_norm", "other"),
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "c10d::allreduce_", "communication"),
)
def test_the_kind_of_a_kernel(name, operator, kind):
    rows = [kernel(name, 10, 20, 1), launch(2, 1), op(operator, 1, 5)]
    trace = events(*rows)
    work = work_of(trace, timeline_of(trace))
    assert work is not None
    assert [(found.kind, found.count) for found in work] == [(kind, 1)]


def test_products_of_a_recorded_trace_are_those_that_its_work_counts():
    """The trace is of 32 bits: its products are the same if these are called 16."""
    trace = read_kineto(GOLDEN / "nccl-sendrecv_128ranks_rank0.json.gz")
    assert trace.types and products_of(trace) == []
    half = {i: ["c10::BFloat16" for _ in told] for i, told in trace.types.items()}
    found = products_of(replace(trace, types=half))
    work = [one for one in work_of(trace, timeline_of(trace)) or () if one.operator != "aten::bmm"]
    assert len({(one.m, one.n, one.k) for one in found}) == len(found) > 10
    flop = sum(2 * one.m * one.n * one.k * one.count for one in found)
    assert flop == pytest.approx(sum(one.flop for one in work))
    assert sum(one.total_s for one in found) == pytest.approx(sum(one.flop_s for one in work))


# HolisticTraceAnalysis 0.5.0, unrounded (HTA_DISABLE_NS_ROUNDING=1): get_comm_comp_overlap,
# get_idle_time_breakdown in µs (stream, host wait, kernel wait, other), get_temporal_breakdown.
@cases(
    "file, overlap, streams, device_us",
    ("nccl-2.17_2ranks_rank0", 0.1476,
     [(7, 355484.56, 1414.17, 0), (40, 381488.45, 0, 0)], 336419.71),
    ("nccl-sendrecv_128ranks_rank0", 0.1181,
     [(23, 596037, 70, 34), (84, 148934, 6, 0), (25, 0, 9, 47865), (7, 213825, 1985, 261740),
      (203, 0, 0, 0)], 321378),
    ("nccl-sendrecv_128ranks_rank1", 0.2005,
     [(23, 596313, 100, 0), (25, 0, 9, 53028), (7, 156827, 1816, 281064),
      (84, 251860, 0, 23247), (203, 0, 0, 0)], 328671),
)  # fmt: skip
def test_overlap_and_idle_time_as_holistic_trace_analysis_has_them(
    file, overlap, streams, device_us
):
    job = analyse_job([GOLDEN / f"{file}.json.gz"], "steps")
    assert job.total.overlap_ratio == pytest.approx(overlap, abs=5e-5)
    idle = as_json(job)["files"][0]["gpu_idle"]
    for stream, host, between, other in streams:
        found = idle["streams"].pop(stream)
        waits = (found["host_wait_s"], found["kernel_wait_s"])
        waits = (*waits, found["stream_wait_s"] + found["other_wait_s"])
        assert [1e6 * s for s in waits] == pytest.approx([host, between, other], abs=0.02)
    assert idle["streams"] == {}
    idle["device"].pop("ends_s")
    assert sum(idle["device"].values()) * 1e6 == pytest.approx(device_us, abs=0.01)
    (whole,) = as_json(analyse_job([GOLDEN / f"{file}.json.gz"], "file"))["files"]
    assert sum(whole["gpu_idle"]["device"].values()) == pytest.approx(whole["idle_s"], abs=1e-7)


def test_streams_that_have_names_in_the_file_keep_their_numbers(tmp_path):
    text = gzip.decompress((GOLDEN / "nccl-2.17_2ranks_rank0.json.gz").read_bytes())
    trace = json.loads(text)
    for event in trace["traceEvents"]:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            event["tid"] = f"stream {event['tid']}"  # as torch 1.9 wrote it
    (tmp_path / "old.json").write_text(json.dumps(trace))
    (found,) = as_json(analyse_job([tmp_path / "old.json"], "file"))["files"]
    assert list(found["gpu_idle"]["streams"]) == [7, 40]


RECORDED = Path(__file__).parents[2] / "recorded" / "communication_kernels.txt"
KERNELS = [line.split(maxsplit=1) for line in RECORDED.read_text().splitlines() if line[0] != "#"]
OTHERS = {"either", "compute", "sounds_alike"}


@cases("kind, name", *(one for one in KERNELS if one[0] not in OTHERS))
def test_kernels_that_communicate(kind, name):
    assert communication_kernels.is_communication_kernel(name)
    assert communication_kernels.kind_of_kernel(name) == kind
    assert not communication_kernels.may_be_communication(name)
    assert communication_kernels.carries_details(name)


@cases("kind, name", *(one for one in KERNELS if one[0] in OTHERS))
def test_kernels_that_may_communicate_and_those_that_compute(kind, name):
    assert not communication_kernels.is_communication_kernel(name)
    assert communication_kernels.may_be_communication(name) == (kind == "either")
    assert communication_kernels.carries_details(name) or kind != "either"
    assert communication_kernels.is_known_to_compute(name) or kind != "compute"


REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
KERNELS_GEMM = [launch(900, 99), kernel("gemm", 910, 990, 99)]
SIZE = {"Collective name": "allreduce", "In msg nelems": 4, "dtype": "Float"}


def call(start, number, backend="nccl", name=REDUCE, launched=True, done=True, **details):
    """A call, its launch, and the kernel that carries it out."""
    rows = [annotation(f"{backend}:all_reduce", start, start + 20, **details)]
    rows += [launch(start + 5, number)] * launched
    return rows + [kernel(name, start + 30, start + 70, number, stream=20)] * done


def told(*rows, **about):
    timeline = timeline_of(events(*rows, *KERNELS_GEMM, **{"world_size": 2, **about}))
    return [op.kind for op in timeline.operations], timeline.calls.num, timeline.calls.num_unseen


@cases("backend", "xccl", "hccl", "mtia", "cncl", "cnccl", "oneccl", "eccl")
def test_what_a_call_of_any_backend_launched_is_communication(backend):
    assert told(*call(0, 1, backend, "no_telling_name")) == (["all_reduce"], 1, 0)
    assert told(*call(0, 1, backend, done=False)) == ([], 1, 1)
    timeline = timeline_of(events(*call(0, 1, backend, done=False), *KERNELS_GEMM))
    assert timeline.calls.backend == backend.upper()
    with pytest.raises(UsageError, match=f"shows {backend.upper()} calls but no GPU kernel"):
        timeline_of(events(*call(0, 1, backend, done=False)))


ALONE = {**SIZE, "Group size": 1}
TWICE = (*call(0, 1), *call(100, 2))
PAIR = annotation("nccl:send 0->1", 200, 210), annotation("nccl:recv 0<-1", 220, 230)
LOST = call(200, 3, done=False)
SILENT = call(200, 3, launched=False, done=False)


@cases(
    "rows, about, num, num_unseen",
    (TWICE, {}, 2, 0),
    ([*TWICE, *LOST], {}, 3, 1),
    (LOST, {}, 1, 1),
    (LOST, {"world_size": None}, 1, 1),
    ([*TWICE, *SILENT, op("record_param_comms", 195, 230, **ALONE)], {}, 2, 0),
    ([*TWICE, *SILENT, op("record_param_comms", 205, 210, **ALONE)], {}, 2, 0),
    # NCCL carries out several together; one of them that launched has lost its kernel
    ([*TWICE, *LOST, annotation("nccl:coalesced", 300, 310)], {}, 4, 1),
    ([*SILENT, annotation("nccl:coalesced", 300, 310)], {}, 2, 2),  # nothing of any is there
    # one kernel for a send and a receive, launched after both
    ([*TWICE, *PAIR, launch(205, 4)], {}, 4, 1),
    # nothing is sent: an uneven all-to-all
    ([*TWICE, annotation("nccl:all_to_all", 200, 220, **{"Input Dims": [[0]]})], {}, 3, 1),
    # kernels that no launch ties to a call may be of any
    ([*SILENT, kernel(REDUCE, 230, 270, stream=20)], {}, 1, 0),
    ([annotation("nccl:all_reduce", 0, 50), *call(10, 1)], {}, 1, 0),  # one inside the other
)  # fmt: skip
def test_calls_without_a_kernel_are_counted(rows, about, num, num_unseen):
    assert told(*rows, **about)[1:] == (num, num_unseen)


def test_while_a_graph_is_captured_launches_have_no_kernels():
    capture = launch(1, 50)
    capture.name = "cudaStreamBeginCapture"
    assert told(*TWICE, *LOST, capture)[1:] == (3, 0)


@cases(
    "name",
       "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16",
    "bfloat16", "float32", "float64", "complex32", "complex64", "complex128", "bool",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
)  # fmt: skip
def test_the_bytes_of_an_element_are_torchs(name):
    assert communication_kernels.dtype_of(name) == (name, getattr(torch, name).itemsize)


def test_in_a_real_trace_operations_are_placed_where_nccl_began_them():
    """Two ranks of a cluster, NCCL 2.17: its kernels hidden, its records those of one rank.

    NCCL's kernel begins at most the launch itself later, about 0.1 ms; the moment at which the
    host asked is up to 0.66 ms too early.
    """
    real = read_kineto(GOLDEN / "nccl-2.17_2ranks_rank0.json.gz")
    is_nccl = np.array(
        [communication_kernels.is_communication_kernel(name) for name in real.names]
    )[real.name]
    is_nccl &= real.category == CATEGORIES.index("kernel")
    hidden = replace(
        real,
        category=np.where(is_nccl, 0, real.category).astype(np.int8),
        details={
            i: {**told, "Group size": 1} if "Group size" in told else told
            for i, told in real.details.items()
        },
    )
    truth, silent = timeline_of(real).operations, timeline_of(hidden).operations
    assert [(o.kind, o.num_bytes, o.phase) for o in silent] == [
        (o.kind, o.num_bytes, o.phase) for o in truth
    ]
    reductions = [
        (o, s) for o, s in zip(truth, silent, strict=True) if o.kind == "all_reduce" and s.num_bytes
    ]
    late_us = [(o.start_ns - s.start_ns) / US for o, s in reductions]
    asked_early_us = [(o.start_ns - s.enqueued_ns) / US for o, s in reductions]
    assert len(reductions) == 15
    assert min(late_us) >= 0 and max(late_us) < 100
    assert max(asked_early_us) > 600
