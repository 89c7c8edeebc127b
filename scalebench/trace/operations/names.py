"""What the names in a trace mean: backends, kinds of collectives, dtypes.

Names of the marks that ranks leave in their traces, and that their readers look for.
"""

import re
from functools import cache

from scalebench.trace.timeline import Kind

STEP = "scalebench.step"
DATA = "scalebench.data"
STAGE = "scalebench.stage"
"""Around the waiting that stands for computation in a paced workload."""
ENCODE = "scalebench.encode"
DECODE = "scalebench.decode"
"""Around a gradient codec; without a profiler a mark costs a few microseconds."""
AXIS = "scalebench.axis."
"""Around operations along a dimension of the mesh; the dimension's name follows."""
EXPERTS = "scalebench.experts"
"""Around what the experts of a rank compute in the forward pass."""


HOST_BACKENDS = ("gloo:", "mpi:", "ucc:")
"""How torch begins the annotation that it puts around an operation of a process group, for backends
whose annotation lasts as long as the operation. That of NCCL and its like ends when the kernel is
queued, so it says nothing about how long the communication took."""

OWN_THREAD_BACKENDS = ("gloo:",)
"""Backends known to annotate a collective on the thread of their own that carries it out."""

_BACKEND = re.compile(r"(gloo|mpi|ucc|mtia|[a-z]{0,4}cclx?|cncl|bkcl|flagcx):(?!:)")
"""Every backend that has a process group of torch's: nccl (RCCL as well), xccl, hccl, …"""

BETWEEN_TWO = ("send", "recv", "send_recv")
"""Kinds of operations that do not go between all ranks of a group."""

COMMS_RECORD = "record_param_comms"
"""The host's event that carries the metadata of a collective."""

# In this order: "reduce" is also a part of "all_reduce" and of "reduce_scatter".
_KIND_OF_WORD: dict[str, Kind] = {
    "reducescatter": "reduce_scatter",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
    "dispatch": "dispatch",
    "combine": "combine",
    "broadcast": "broadcast",
    "barrier": "barrier",
    "gather": "gather",
    "scatter": "scatter",
    "reduce": "reduce",
    "send": "send",
    "recv": "recv",
}

_LAUNCHES_KERNEL = re.compile(r"Launch(Cooperative)?Kernel|KernelLaunch|InvokeKernel|^runFunction")

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


def carries_data(name: str) -> bool:
    """Tell whether a collective moves data, by its name: a barrier does not."""
    return kind_of(name.rpartition("::")[2]) not in ("unknown", "barrier")


def launches_kernel(name: str) -> bool:
    """Tell whether a call of a runtime or driver (CUDA's, HIP's, …) launches one kernel."""
    return _LAUNCHES_KERNEL.search(name) is not None


@cache
def backend_of(name: str) -> str | None:
    """Return the backend whose operation an annotation stands for: ``nccl:all_reduce`` → nccl."""
    found = _BACKEND.match(name)
    return found[1] if found else None


def works_on_device(name: str) -> bool:
    """Tell whether an annotation is of a backend that queues kernels, as NCCL does."""
    return backend_of(name) is not None and not name.startswith(HOST_BACKENDS)


def dtype_of(name: object) -> tuple[str, int] | None:
    """Return torch's spelling of a dtype and the bytes of one element; None: not known."""
    key = str(name).strip().lower().removeprefix("torch.").removeprefix("c10::")
    return _DTYPES.get(key)


PRODUCTS = {
    "aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2), "aten::baddbmm": (1, 2),
    "aten::_scaled_mm": (0, 1), "aten::_int_mm": (0, 1),
}  # fmt: skip
"""Operator that multiplies two matrices → their positions among its arguments."""
