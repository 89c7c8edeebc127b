"""Which kernels communicate, by every library's names."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from scalebench.errors import UsageError
from scalebench.trace.events import CATEGORIES
from scalebench.trace.files.kineto import read_kineto
from scalebench.trace.operations import names
from scalebench.trace.operations.classify import timeline_of
from scalebench.trace.operations.communication_kernels import (
    carries_details,
    is_communication_kernel,
    is_known_to_compute,
    kind_of_kernel,
    may_be_communication,
)
from tests.builders.tracing.traces import US, annotation, events, kernel, launch, op

KERNELS = {
    # NCCL up to 2.9, 2.10 to 2.18, from 2.19 on; symmetric memory from 2.27 on; RCCL; MSCCL
    "ncclAllReduceRingLLKernel_sum_f32(ncclColl)": "all_reduce",
    "ncclSendRecvKernel_copy_i8(ncclColl)": "send_recv",
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)": "all_reduce",
    "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)": "all_gather",
    "ncclKernel_Reduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)": "reduce",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)": (
        "send_recv"
    ),
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)": "all_reduce",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": (
        "reduce_scatter"
    ),
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all_gather",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)": "send_recv",
    "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f32(ncclSymkDevWorkArgs)": "all_reduce",
    "ncclDevKernel_Generic(ncclDevComm*, unsigned long, ncclWork*)": "unknown",
    "rccl_main_kernel_1(ncclDevComm*)": "unknown",
    "mscclKernel_Sum_float_LL(ncclDevComm*, mscclAlgo*)": "unknown",
    # DeepEP and its forks, mangled too; MORI; pplx; FlashInfer and TensorRT-LLM
    "void deep_ep::internode_ll::dispatch<true, 7168>(void*)": "dispatch",
    "void uccl::intranode::combine<__nv_bfloat16, 8>(int4*)": "combine",
    "_ZN7deep_ep9intranode8dispatchILi8EEEvP4int4": "dispatch",
    "void hybrid_ep::combine_kernel<x>(x)": "combine",
    "EpDispatchInterNodeV1KernelLowLatency_bf16": "dispatch",
    "void pplx::a2a_kernels::a2a_dispatch_send_kernel<8>(int)": "dispatch",
    "void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<1>(int)": "all_to_all",
    "void tensorrt_llm::kernels::fused_moe_impl::moeAllToAllKernel<8, false>(int)": "all_to_all",
    "all2all_pull_kernel<__nv_bfloat16, 8>(unsigned long const*)": "all_to_all",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<"
    "(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, 8>(x)": "all_reduce",
    "void flashinfer::trtllm_mnnvl_allreduce::rmsNormLamport<8>(x)": "all_reduce",
    # custom all-reduces of vLLM, SGLang, AITER, TensorRT-LLM
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)": "all_reduce",
    "quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half>, __half>": "all_reduce",
    "void tensorrt_llm::kernels::twoShotAllReduceKernel<float, 8>(x)": "all_reduce",
    "my_own_allgather(float*)": "all_gather",
    # Transformer Engine's userbuffers
    "void userbuffers_fp16_sum_inplace_gpu_rw_ag<8>(int)": "all_gather",
    "userbuffers_fp16_sum_inplace_gpu_rr_rs_oop(int)": "reduce_scatter",
    # NVSHMEM, rocSHMEM, MSCCL++, torch's symmetric memory, one-sided puts
    "nvshmemi_transfer_rma_p<float>(void*)": "put",
    "mscclpp::allreduce_nvls<float>(void*)": "all_reduce",
    "two_shot_all_reduce_kernel(at::BFloat16*)": "all_reduce",
    "void c10d::symmetric_memory::(anonymous namespace)::multimem_all_gather_kernel<16>(x)": (
        "all_gather"
    ),
    "put_signal_kernel(unsigned int**, int, int)": "put",
    # oneCCL, HCCL, CNCL
    "oneccl_reduce_base<float, 2, 16, 1, 1, 2>": "reduce",
    "hcom_allReduce__617_0": "all_reduce",
    "cnclKernelAllReduceRing": "all_reduce",
}


@pytest.mark.parametrize(("name", "kind"), KERNELS.items())
def test_kernels_that_communicate(name, kind):
    assert is_communication_kernel(name)
    assert kind_of_kernel(name) == kind
    assert not may_be_communication(name)
    assert carries_details(name)


OF_BOTH = [
    "gemm_one_shot_all_reduce_kernel",  # computes as well
    "void mscclpp::megamoe::detail::megaMoe<false>()",
    "void flux::ag_gemm<ncclComm>(x)",
    "void own_kernel(nvshmem_team_t, float*)",
    "void softmax::BlockAllReduce<float>(x)",  # within a block of threads
    "void deep_ep::layout::get_dispatch_layout<256>(long)",  # counts
    "nvshmemi_init_array_kernel<int>(x)",
]
COMPUTE = [
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(float)",
    "triton_red_fused_native_layer_norm_0",
    "triton_red_fused_add_all_reduce_native_layer_norm_wait_tensor_1",
    "triton_fused_reduce_scatter",
    "void at::native::sbtopk::gatherTopK<float>(x)",
]
SOUND_ALIKE = ["transpose_shmem_kernel", "ccl_label_kernel(int*)", "scatter_reduce", "normalise"]
"""Shared memory, and labelling of connected components."""


@pytest.mark.parametrize("name", [*OF_BOTH, *COMPUTE, *SOUND_ALIKE])
def test_kernels_that_may_communicate_and_those_that_compute(name):
    assert not is_communication_kernel(name)
    assert may_be_communication(name) == (name in OF_BOTH)
    assert carries_details(name) or name not in OF_BOTH
    assert is_known_to_compute(name) or name not in COMPUTE


REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = [launch(900, 99), kernel("gemm", 910, 990, 99)]
SIZE = {"Collective name": "allreduce", "In msg nelems": 4, "dtype": "Float"}


def call(start, number, backend="nccl", name=REDUCE, launched=True, done=True, **details):
    """A call, its launch, and the kernel that carries it out."""
    rows = [annotation(f"{backend}:all_reduce", start, start + 20, **details)]
    rows += [launch(start + 5, number)] * launched
    return rows + [kernel(name, start + 30, start + 70, number, stream=20)] * done


def told(*rows, **about):
    timeline = timeline_of(events(*rows, *GEMM, **{"world_size": 2, **about}))
    return [op.kind for op in timeline.operations], timeline.calls.num, timeline.calls.num_unseen


@pytest.mark.parametrize("backend", ["xccl", "hccl", "mtia", "cncl", "cnccl", "oneccl", "eccl"])
def test_what_a_call_of_any_backend_launched_is_communication(backend):
    assert told(*call(0, 1, backend, "no_telling_name")) == (["all_reduce"], 1, 0)
    assert told(*call(0, 1, backend, done=False)) == ([], 1, 1)
    timeline = timeline_of(events(*call(0, 1, backend, done=False), *GEMM))
    assert timeline.calls.backend == backend.upper()
    with pytest.raises(UsageError, match=f"shows {backend.upper()} calls but no GPU kernel"):
        timeline_of(events(*call(0, 1, backend, done=False)))


ALONE = {**SIZE, "Group size": 1}
TWICE = (*call(0, 1), *call(100, 2))
PAIR = annotation("nccl:send 0->1", 200, 210), annotation("nccl:recv 0<-1", 220, 230)
LOST = call(200, 3, done=False)
SILENT = call(200, 3, launched=False, done=False)


@pytest.mark.parametrize(
    ("rows", "about", "num", "num_unseen"),
    [
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
    ],
)  # fmt: skip
def test_calls_without_a_kernel_are_counted(rows, about, num, num_unseen):
    assert told(*rows, **about)[1:] == (num, num_unseen)


def test_while_a_graph_is_captured_launches_have_no_kernels():
    capture = launch(1, 50)
    capture.name = "cudaStreamBeginCapture"
    assert told(*TWICE, *LOST, capture)[1:] == (3, 0)


@pytest.mark.parametrize(
    "name",
    ["uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16",
     "bfloat16", "float32", "float64", "complex32", "complex64", "complex128", "bool",
     "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"],
)  # fmt: skip
def test_the_bytes_of_an_element_are_torchs(name):
    assert names.dtype_of(name) == (name, getattr(torch, name).itemsize)


REAL = Path(__file__).parents[2] / "golden" / "traces" / "nccl-2.17_2ranks_rank0.json.gz"


def test_in_a_real_trace_operations_are_placed_where_nccl_began_them():
    """Two ranks of a cluster, NCCL 2.17: its kernels hidden, its records those of one rank.

    NCCL's kernel begins at most the launch itself later, about 0.1 ms; the moment at which the
    host asked is up to 0.66 ms too early.
    """
    real = read_kineto(REAL)
    is_nccl = np.array([is_communication_kernel(name) for name in real.names])[real.name]
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
