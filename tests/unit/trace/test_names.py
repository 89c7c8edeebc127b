"""What names mean, in every spelling that torch has used."""

import pytest
import torch

from scalebench.trace import names


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
    ("name", "backend", "on_device"),
    [
        ("nccl:all_reduce", "nccl", True),
        ("xccl:all_reduce", "xccl", True),
        ("hccl:broadcast", "hccl", True),
        ("cnccl:all_gather", "cnccl", True),
        ("cncl:all_gather", "cncl", True),
        ("oneccl:all_reduce", "oneccl", True),
        ("mtia:all_reduce", "mtia", True),
        ("gloo:all_reduce", "gloo", False),
        ("ucc:barrier", "ucc", False),
        ("ccl::allreduce", None, False),
        ("ProfilerStep#3", None, False),
        ("moe:dispatch", None, False),
    ],
)
def test_backends(name, backend, on_device):
    assert (names.backend_of(name), names.works_on_device(name)) == (backend, on_device)
