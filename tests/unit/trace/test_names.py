"""What names mean, in every spelling that NCCL, RCCL and torch have used."""

import pytest
import torch

from scalebench.trace import names

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
}


@pytest.mark.parametrize(("name", "kind"), KERNELS.items())
def test_kernels_that_communicate(name, kind):
    assert names.is_communication_kernel(name)
    assert names.kind_of(name) == kind
    assert not names.may_be_communication(name)
    assert names.carries_details(name)


@pytest.mark.parametrize(
    "name",
    [
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
        "nvshmemi_transfer_rma_p<float>(void*)",
        "void deep_ep::internode_ll::dispatch<true, 7168>(void*)",
        "mscclpp::allreduce_nvls<float>(void*)",
        "two_shot_all_reduce_kernel(at::BFloat16*)",
    ],
)
def test_kernels_that_may_communicate(name):
    assert names.may_be_communication(name)
    assert not names.is_communication_kernel(name)


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)",
        "ampere_sgemm_128x64_tn",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(float)",
        "void at::native::broadcast_kernel(float*)",
        "triton_red_fused_native_layer_norm_0",
    ],
)
def test_kernels_that_compute(name):
    assert not names.may_be_communication(name)
    assert not names.is_communication_kernel(name)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("allreduce", "all_reduce"),
        ("all_reduce", "all_reduce"),
        ("allreduce_coalesced", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("all_gather", "all_gather"),
        ("allgather_into_tensor_coalesced", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("alltoall_base", "all_to_all"),
        ("_broadcast_oop", "broadcast"),
        ("_reduce_oop", "reduce"),
        ("barrier", "barrier"),
        ("gather", "gather"),
        ("scatter", "scatter"),
        ("send", "send"),
        ("recv", "recv"),
        ("coalesced", "unknown"),
        ("wait", "unknown"),
        ("", "unknown"),
    ],
)
def test_collectives_of_c10d(name, kind):
    assert names.kind_of(name) == kind


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Float", ("float32", 4)),
        ("BFloat16", ("bfloat16", 2)),
        ("c10::BFloat16", ("bfloat16", 2)),
        ("Half", ("float16", 2)),
        ("Long", ("int64", 8)),
        ("long int", ("int64", 8)),
        ("Byte", ("uint8", 1)),
        ("unsigned char", ("uint8", 1)),
        ("Int", ("int32", 4)),
        ("Double", ("float64", 8)),
        ("ComplexFloat", ("complex64", 8)),
        ("c10::complex<float>", ("complex64", 8)),
        ("Float8_e4m3fn", ("float8_e4m3fn", 1)),
        ("torch.float32", ("float32", 4)),
        ("TensorList", None),
        (None, None),
    ],
)
def test_dtypes(name, expected):
    assert names.dtype_of(name) == expected


@pytest.mark.parametrize(
    "name",
    ["uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16",
     "bfloat16", "float32", "float64", "complex32", "complex64", "complex128", "bool",
     "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"],
)  # fmt: skip
def test_the_bytes_of_an_element_are_torchs(name):
    assert names.dtype_of(name) == (name, getattr(torch, name).itemsize)


@pytest.mark.parametrize(
    ("name", "dtype", "size"),
    [
        ("float8_e8m0fnu", "float8_e8m0fnu", 1),
        ("float4_e2m1fn_x2", "float4_e2m1fn_x2", 1),  # two elements of half a byte
        (" Char ", "int8", 1),
        ("short int", "int16", 2),
        ("long long", "int64", 8),
        ("unsigned short", "uint16", 2),
        ("unsigned int", "uint32", 4),
        ("unsigned long", "uint64", 8),
        ("ComplexHalf", "complex32", 4),
        ("c10::complex<c10::half>", "complex32", 4),
        ("ComplexDouble", "complex128", 16),
        ("torch.bool", "bool", 1),
    ],
)
def test_the_dtypes_of_other_spellings(name, dtype, size):
    assert names.dtype_of(name) == (dtype, size)
