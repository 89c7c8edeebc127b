"""What the names in a trace mean: kinds of collectives, kernels that communicate, dtypes."""

import re

from scalebench.trace.timeline import Kind

NCCL_PREFIX = "nccl:"
BACKEND_PREFIXES = (NCCL_PREFIX, "gloo:", "mpi:", "ucc:")
"""How torch begins the annotation that it puts around an operation of a process group."""

HOST_BACKENDS = ("gloo:", "mpi:", "ucc:")
"""Backends whose annotation lasts as long as the operation. That of NCCL ends when the kernel is
queued, so it says nothing about how long the communication took."""

OWN_THREAD_BACKENDS = ("gloo:",)
"""Backends known to annotate a collective on the thread of their own that carries it out."""

COMMS_RECORD = "record_param_comms"
"""The host's event that carries the metadata of a collective."""

# In this order: "reduce" is also a part of "all_reduce" and of "reduce_scatter".
_KIND_OF_WORD: dict[str, Kind] = {
    "reducescatter": "reduce_scatter",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
    "broadcast": "broadcast",
    "barrier": "barrier",
    "gather": "gather",
    "scatter": "scatter",
    "reduce": "reduce",
    "send": "send",
    "recv": "recv",
}

_LAUNCHES_KERNEL = re.compile(r"Launch(Cooperative)?Kernel")

_COMMUNICATION_KERNEL = re.compile(r"nccl|rccl|msccl(?!pp)", re.IGNORECASE)

_LOOKS_LIKE_COMMUNICATION = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|send_?recv|mscclpp|nvshmem|deep_?ep"
    r"|cross_device_reduce|quick_?reduce|multimem|symm_?mem|lamport|oneccl|hccl|xccl",
    re.IGNORECASE,
)

# torch/csrc's ScalarType names, C++'s own and torch's, with the bytes of an element.
_DTYPES: dict[str, tuple[str, int]] = {
    alias: (dtype, size)
    for dtype, size, aliases in (
        ("uint8", 1, ("byte", "unsigned char", "uint8_t")),
        ("int8", 1, ("char", "signed char", "int8_t")),
        ("int16", 2, ("short", "short int", "int16_t")),
        ("int32", 4, ("int", "int32_t")),
        ("int64", 8, ("long", "long int", "long long", "int64_t")),
        ("uint16", 2, ("unsigned short", "uint16_t")),
        ("uint32", 4, ("unsigned int", "uint32_t")),
        ("uint64", 8, ("unsigned long", "uint64_t")),
        ("float16", 2, ("half",)),
        ("bfloat16", 2, ()),
        ("float32", 4, ("float",)),
        ("float64", 8, ("double",)),
        ("complex32", 4, ("complexhalf", "complex<half>", "complex<c10::half>")),
        ("complex64", 8, ("complexfloat", "complex<float>")),
        ("complex128", 16, ("complexdouble", "complex<double>")),
        ("bool", 1, ()),
        ("float8_e4m3fn", 1, ()),
        ("float8_e4m3fnuz", 1, ()),
        ("float8_e5m2", 1, ()),
        ("float8_e5m2fnuz", 1, ()),
        ("float8_e8m0fnu", 1, ()),
        ("float4_e2m1fn_x2", 1, ()),
    )
    for alias in (dtype, *aliases)
}


def kind_of(name: str) -> Kind:
    """Return the kind that a collective's name tells, however it is spelt.

    Args:
        name: From metadata (``_allgather_base``), an annotation (``nccl:all_reduce``), a host
            operator (``c10d::allreduce_``) or a kernel
            (``ncclDevKernel_AllReduce_Sum_f32_RING_LL(…)``).
    """
    letters = re.sub(r"[^a-z]", "", name.partition("(")[0].lower())
    return next((kind for word, kind in _KIND_OF_WORD.items() if word in letters), "unknown")


def launches_kernel(name: str) -> bool:
    """Tell whether a call of CUDA's or HIP's runtime or driver launches one kernel."""
    return _LAUNCHES_KERNEL.search(name) is not None


def is_communication_kernel(name: str) -> bool:
    """Return whether a kernel is one of NCCL's, RCCL's or MSCCL's."""
    return _COMMUNICATION_KERNEL.search(name) is not None


def may_be_communication(name: str) -> bool:
    """Return whether a kernel's name suggests communication that is not known for certain."""
    return not is_communication_kernel(name) and bool(_LOOKS_LIKE_COMMUNICATION.search(name))


def carries_details(name: str) -> bool:
    """Return whether the arguments of an event with this name can describe communication."""
    return (
        name.startswith((*BACKEND_PREFIXES, "c10d::", COMMS_RECORD))
        or _COMMUNICATION_KERNEL.search(name) is not None
    )


def dtype_of(name: object) -> tuple[str, int] | None:
    """Return torch's spelling of a dtype and the bytes of one element; None: not known."""
    key = str(name).strip().lower().removeprefix("torch.").removeprefix("c10::")
    return _DTYPES.get(key)
