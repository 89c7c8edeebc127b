"""What a GPU did by kind, and why it was idle: hand-made and golden traces."""

import gzip
import json
from pathlib import Path

import pytest

from scalebench.trace.job import analyse_job, as_json
from scalebench.trace.operations.classify import timeline_of
from scalebench.trace.operations.gpu_work import work_of
from tests.builders.tracing.traces import events, kernel, launch, op

GOLDEN = Path(__file__).parents[2] / "golden" / "traces"


@pytest.mark.parametrize(
    ("name", "operator", "kind"),
    [
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
    ],
)
def test_the_kind_of_a_kernel(name, operator, kind):
    rows = [kernel(name, 10, 20, 1), launch(2, 1), op(operator, 1, 5)]
    trace = events(*rows)
    work = work_of(trace, timeline_of(trace))
    assert work is not None
    assert [(found.kind, found.count) for found in work] == [(kind, 1)]


# HolisticTraceAnalysis 0.5.0, get_idle_time_breakdown and get_temporal_breakdown, in µs and
# unrounded (HTA_DISABLE_NS_ROUNDING=1): (stream, host wait, kernel wait, other), and idle time.
@pytest.mark.parametrize(
    ("file", "streams", "device_us"),
    [
        ("nccl-2.17_2ranks_rank0",
         [(7, 355484.56, 1414.17, 0), (40, 381488.45, 0, 0)], 336419.71),
        ("nccl-sendrecv_128ranks_rank0",
         [(23, 596037, 70, 34), (84, 148934, 6, 0), (25, 0, 9, 47865), (7, 213825, 1985, 261740),
          (203, 0, 0, 0)], 321378),
        ("nccl-sendrecv_128ranks_rank1",
         [(23, 596313, 100, 0), (25, 0, 9, 53028), (7, 156827, 1816, 281064),
          (84, 251860, 0, 23247), (203, 0, 0, 0)], 328671),
    ],
)  # fmt: skip
def test_idle_time_as_holistic_trace_analysis_has_it(file, streams, device_us):
    job = analyse_job([GOLDEN / f"{file}.json.gz"], "steps")
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
