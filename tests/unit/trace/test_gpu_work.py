"""What a GPU did by kind, and why it was idle: hand-made and golden traces."""

from pathlib import Path

import pytest

from scalebench.trace.classify import timeline_of
from scalebench.trace.gpu_work import summed, work_of
from scalebench.trace.job import analyse_job, as_json
from tests.builders.traces import Event, annotation, events, kernel, launch, op

GOLDEN = Path(__file__).parents[2] / "golden" / "traces"


@pytest.mark.parametrize(
    ("name", "operator", "kind"),
    [
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_nn", "aten::mm", "matmul"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_TNT", "", "matmul"),
        ("Cijk_Ailk_Bljk_BBS_BH_MT256x128x64", "", "matmul"),
        ("void cublasLt::splitKreduce_kernel<32, 16>", "aten::addmm", "matmul"),
        ("ampere_sgemm_128x64_nn", "aten::cudnn_convolution", "convolution"),
        ("sm80_xmma_fprop_implicit_gemm_indexed_tf32f32", "", "convolution"),
        ("cutlass_gemm", "aten::convolution_backward", "convolution"),
        ("void pytorch_flash::flash_fwd_kernel<T>", "aten::_flash_attention_forward", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", "", "attention"),
        ("vectorized_layer_norm_kernel<float>", "aten::native_layer_norm", "normalisation"),
        ("void cudnn::bn_bw_1C11_kernel_new<float>", "", "normalisation"),
        ("void at::native::vectorized_elementwise_kernel<4>", "aten::mul", "elementwise"),
        ("triton_poi_fused_convolution_native_layer_norm_0", "", "elementwise"),
        ("triton_red_fused_native_layer_norm_1", "", "normalisation"),
        ("triton_per_fused_addmm_sum_2", "triton_per_fused_addmm_sum_2", "other"),
        ("void fbgemm_gpu::permute_2D_data_kernel<false>", "fbgemm::permute", "other"),
        ("void at::native::reduce_kernel<512>", "aten::linalg_vector_norm", "other"),
        ("multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>", "", "optimizer"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "c10d::allreduce_", "communication"),
    ],
)
def test_the_kind_of_a_kernel(name: str, operator: str, kind: str) -> None:
    rows = [kernel(name, 10, 20, 1), launch(2, 1), op(operator, 1, 5)]
    trace = events(*rows)
    work = work_of(trace, timeline_of(trace))
    assert work is not None
    assert [(found.kind, found.count) for found in work] == [(kind, 1)]


def test_what_an_optimizer_step_launches_is_the_optimizer_but_for_its_matrix_products() -> None:
    trace = events(
        annotation("Optimizer.step#Muon.step", 0, 50),
        launch(1, 1),
        launch(2, 2),
        launch(60, 3),
        op("aten::_foreach_add_", 1, 1.5),
        op("aten::mm", 2, 3),
        kernel("multi_tensor_apply_kernel<ListAdd>", 10, 20, 1),
        kernel("gemm", 20, 30, 2),
        kernel("vectorized_elementwise_kernel", 70, 80, 3),
        Event("gpu_memset", "Memset (Device)", 90, 95, 7),
    )
    work = work_of(trace, timeline_of(trace))
    assert work is not None
    assert {k.kind: round(k.total_s * 1e6) for k in summed(work, by_kind=True)} == {
        "optimizer": 10,
        "matmul": 10,
        "elementwise": 10,
        "copy": 5,
    }


@pytest.mark.parametrize(
    ("operator", "shapes", "flop"),
    [
        ("aten::mm", [[128, 64], [64, 32]], 2 * 128 * 64 * 32),
        ("aten::addmm", [[32], [128, 64], [64, 32], [], []], 2 * 128 * 64 * 32),
        ("aten::bmm", [[4, 128, 64], [4, 64, 32]], 2 * 4 * 128 * 64 * 32),
        ("aten::baddbmm", [[4, 8, 8], [4, 8, 16], [4, 16, 8]], 2 * 4 * 8 * 16 * 8),
        ("aten::mm", None, None),
        ("aten::mm", [[128, 64], [65, 32]], None),
        ("aten::mm", "damaged", None),
        ("aten::mm", [["a", 64], [64, 32]], None),
    ],
)
def test_rate_of_matrix_products(operator: str, shapes: object, flop: int | None) -> None:
    trace = events(op(operator, 0, 5), launch(1, 1), kernel("gemm", 10, 20, 1), shapes={0: shapes})
    work = work_of(trace, timeline_of(trace))
    assert work is not None
    rate = work[0].flop_per_s
    assert rate is None if flop is None else rate == pytest.approx(flop / 10e-6)


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
def test_idle_time_as_holistic_trace_analysis_has_it(
    file: str, streams: list[tuple[float, ...]], device_us: float
) -> None:
    job = analyse_job([GOLDEN / f"{file}.json.gz"], "steps")
    idle = as_json(job)["files"][0]["gpu_idle"]
    for stream, host, between, other in streams:
        found = idle["streams"].pop(stream)
        waits = (found["host_wait_s"], found["kernel_wait_s"])
        waits = (*waits, found["stream_wait_s"] + found["other_wait_s"])
        assert [1e6 * s for s in waits] == pytest.approx([host, between, other], abs=0.02)
    assert idle["streams"] == {}
    assert sum(idle["device"].values()) * 1e6 == pytest.approx(device_us, abs=0.01)


def test_kinds_of_a_job_and_none_on_cpu() -> None:
    gpu = as_json(analyse_job([GOLDEN / f"nccl-sendrecv_128ranks_rank{r}.json.gz" for r in (0, 1)]))
    kinds = {kind["kind"]: kind for kind in gpu["total"]["gpu_work"]}
    assert kinds["communication"]["total_s"] == pytest.approx(gpu["total"]["comm_s"])
    assert kinds["copy"]["total_s"] == pytest.approx(gpu["total"]["copies_s"])
    assert kinds["matmul"]["flop_per_s"] == pytest.approx(24.4e12, rel=0.01)
    cpu = as_json(analyse_job([GOLDEN / "gloo_2ranks_rank0.json.gz"]))["files"][0]
    assert (cpu["gpu_work"], cpu["gpu_idle"]) == (None, None)
    assert cpu["unavailable"]["gpu_work"] == "the trace has no GPU kernels"
