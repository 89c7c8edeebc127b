"""Which kernels communicate, by every library's names."""

import pytest

from scalebench.trace.communication_kernels import (
    carries_details,
    is_communication_kernel,
    is_known_to_compute,
    kind_of_kernel,
    may_be_communication,
)

KERNELS = {
    # NCCL up to 2.9, 2.10 to 2.18, from 2.19 on; symmetric memory from 2.27 on; RCCL; MSCCL
    "ncclAllReduceRingLLKernel_sum_f32(ncclColl)": "all_reduce",
    "ncclReduceScatterRingLLKernel_sum_f16(ncclColl)": "reduce_scatter",
    "ncclAllGatherRingLLKernel_copy_i8(ncclColl)": "all_gather",
    "ncclBroadcastRingLLKernel_copy_i8(ncclColl)": "broadcast",
    "ncclSendRecvKernel_copy_i8(ncclColl)": "send_recv",
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)": "all_reduce",
    "ncclKernel_AllReduce_TREE_LL_Sum_half(ncclDevComm*, unsigned long, ncclWork*)": "all_reduce",
    "ncclKernel_ReduceScatter_RING_LL_Sum___nv_bfloat16(ncclWorkElem)": "reduce_scatter",
    "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)": "all_gather",
    "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)": "broadcast",
    "ncclKernel_Reduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)": "reduce",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)": (
        "send_recv"
    ),
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)": "all_reduce",
    "ncclDevKernel_AllReduce_Sum_bf16_NVLS(ncclDevKernelArgsStorage<4096ul>)": "all_reduce",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": (
        "reduce_scatter"
    ),
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all_gather",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)": "send_recv",
    "ncclDevKernel_Broadcast_RING_LL(ncclDevComm*, unsigned long, ncclWork*)": "broadcast",
    "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f32(ncclSymkDevWorkArgs)": "all_reduce",
    "ncclDevKernel_Generic(ncclDevComm*, unsigned long, ncclWork*)": "unknown",
    "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)": "unknown",
    "rccl_main_kernel_1(ncclDevComm*)": "unknown",
    "mscclKernel_Sum_float_LL(ncclDevComm*, mscclAlgo*)": "unknown",
    # DeepEP and its forks, mangled too; MORI; pplx; FlashInfer and TensorRT-LLM
    "void deep_ep::internode_ll::dispatch<true, 7168>(void*)": "dispatch",
    "void dpsk::ep::internode::cached_notify<false>(int, int)": "dispatch",
    "void uccl::intranode::combine<__nv_bfloat16, 8>(int4*)": "combine",
    "_ZN7deep_ep9intranode8dispatchILi8EEEvP4int4": "dispatch",
    "deep_ep_notify_dispatch": "dispatch",
    "void deep_ep::intranode::barrier<8>(int**)": "barrier",
    "void hybrid_ep::combine_kernel<x>(x)": "combine",
    "EpDispatchInterNodeV1KernelLowLatency_bf16": "dispatch",
    "void pplx::a2a_kernels::a2a_dispatch_send_kernel<8>(int)": "dispatch",
    "void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<1>(int)": "all_to_all",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<"
    "(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, 8>(x)": "all_reduce",
    "void flashinfer::trtllm_mnnvl_allreduce::rmsNormLamport<8>(x)": "all_reduce",
    # custom all-reduces of vLLM, SGLang, AITER, TensorRT-LLM
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)": "all_reduce",
    "void aiter::cross_device_reduce_2stage<__half, 8>(x)": "all_reduce",
    "quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half>, __half>": "all_reduce",
    "void tensorrt_llm::kernels::twoShotAllReduceKernel<float, 8>(x)": "all_reduce",
    "my_own_allgather(float*)": "all_gather",
    # Transformer Engine's userbuffers
    "void userbuffers_fp16_sum_inplace_gpu_rw_ag<8>(int)": "all_gather",
    "userbuffers_fp16_sum_inplace_gpu_rr_rs_oop(int)": "reduce_scatter",
    "kuserbuffers_pushsendrecv(int*)": "send_recv",
    # NVSHMEM, rocSHMEM, MSCCL++, torch's symmetric memory, one-sided puts
    "nvshmemi_transfer_rma_p<float>(void*)": "put",
    "void nvshmemi_fcollect_on_stream_kernel<int>(x)": "all_gather",
    "void rdxn_on_stream_kernel<float, 0>(x)": "all_reduce",
    "barrier_on_stream_kernel_threadgroup": "barrier",
    "rocshmem_alltoall_kernel": "all_to_all",
    "mscclpp::allreduce_nvls<float>(void*)": "all_reduce",
    "two_shot_all_reduce_kernel(at::BFloat16*)": "all_reduce",
    "void c10d::symmetric_memory::(anonymous namespace)::multimem_all_gather_kernel<16>(x)": (
        "all_gather"
    ),
    "put_signal_kernel(unsigned int**, int, int)": "put",
    "putmem_signal_nbi_block_kernel": "put",
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


@pytest.mark.parametrize(
    "name",
    [
        "gemm_one_shot_all_reduce_kernel",  # computes as well
        "void mscclpp::megamoe::detail::megaMoe<false>()",
        "void flux::ag_gemm<ncclComm>(x)",
        "void own_kernel(nvshmem_team_t, float*)",
        "void softmax::BlockAllReduce<float>(x)",  # within a block of threads
        "void deep_ep::layout::get_dispatch_layout<256>(long)",  # counts
        "nvshmemi_init_array_kernel<int>(x)",
    ],
)
def test_kernels_that_may_communicate(name):
    assert may_be_communication(name)
    assert not is_communication_kernel(name)
    assert carries_details(name)


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)",
        "ampere_sgemm_128x64_tn",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(float)",
        "void at::native::broadcast_kernel(float*)",
        "triton_red_fused_native_layer_norm_0",
        "triton_poi_fused_all_reduce_lift_fresh_0",
        "triton_red_fused_add_all_reduce_native_layer_norm_wait_tensor_1",
        "triton_tem_fused_mm_all_gather_into_tensor_7",
        "triton_fused_reduce_scatter",
        "void flash::flash_fwd_splitkv_combine_kernel<x>(x)",
        "void at::native::sbtopk::gatherTopK<float>(x)",
    ],
)
def test_kernels_that_compute(name):
    assert not may_be_communication(name)
    assert not is_communication_kernel(name)
    assert is_known_to_compute(name)


@pytest.mark.parametrize(
    "name", ["transpose_shmem_kernel", "ccl_label_kernel(int*)", "scatter_reduce", "normalise"]
)
def test_words_that_mean_something_else(name):
    """Shared memory, and labelling of connected components."""
    assert not may_be_communication(name)
    assert not is_communication_kernel(name)
