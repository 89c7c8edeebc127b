"""Which kernels communicate, and what the names in a trace mean.

What the names in a trace mean: backends, kinds of collectives, dtypes.

Names of the marks that ranks leave in their traces, and that their readers look for.

Which kernels communicate, by the names that libraries give them.

A name is looked at without its parameters and template arguments: those tell types, not what the
kernel does. A kernel that both computes and communicates (a matrix product with an all-reduce in
it) counts as computation, and is named as one that may communicate.
"""

import re
from functools import cache
from typing import NamedTuple

from scalebench.trace.events import Kind

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


class Library(NamedTuple):
    """How a library calls its kernels.

    Attributes:
        source: Where the names are defined.
        pattern: Found in the function's name in lower case.
        kind: What such a kernel does where no word of its name says it.
    """

    source: str
    pattern: str
    kind: Kind = "unknown"


_COLLECTIVE = r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|send_?recv"

LIBRARIES = (
    Library("NVIDIA/nccl, ROCm/rccl, Azure/msccl: src/device", r"nccl|rccl|msccl(?!pp)"),
    Library(
        "uxlfoundation/oneCCL; Gaudi's, Ascend's and MTIA's hccl; Cambricon's cncl, Baidu's bkcl, "
        "MetaX' and Moore Threads' mccl",
        r"(?<![a-z])((one|x|h|e|cn|m|l|v)ccl|cncl|bkcl|hcom_|ccl(::|_(all|reduce|b|send|recv)))|"
        r"^collective_subgraph",
    ),
    Library(
        "deepseek-ai/DeepEP: csrc/kernels; its forks have other outer namespaces",
        r"(intra|inter)node(_ll)?::(?!.*layout)|deep_?ep.*(notify|dispatch|combine|barrier)(?!.*layout)",
        "dispatch",
    ),
    Library("deepseek-ai/DeepEP, branch hybrid-ep", r"hybrid_ep::(dispatch|combine|device_sync)"),
    Library("ROCm/mori: src/ops/dispatch_combine", r"(?<![a-z])ep(dispatch|combine)"),
    Library("perplexityai/pplx-kernels", r"a2a_(dispatch|combine)|pplx::"),
    Library(
        "NVIDIA/TensorRT-LLM and flashinfer: moeAlltoAllKernels.cu",
        r"moea2a(dispatch|combine)|moe_?comm::|fusedmoecomm",
        "all_to_all",
    ),
    Library(
        "vllm-project/vllm, sgl-project/sglang, ROCm/aiter: custom_all_reduce.cuh",
        r"cross_device_(reduce|store)|quick_?reduce",
        "all_reduce",
    ),
    Library("Models' own kernels for experts", r"all_?2_?all", "all_to_all"),
    Library("flashinfer: trtllm_mnnvl_allreduce.cuh", r"lamport(?!.*init)", "all_reduce"),
    Library("NVIDIA/TransformerEngine: userbuffers.cu", r"userbuffers_\w*_ag\b", "all_gather"),
    Library("NVIDIA/TransformerEngine: userbuffers.cu", r"userbuffers_\w*_rs", "reduce_scatter"),
    Library("NVIDIA/TransformerEngine: userbuffers.cu", r"userbuffers_(push|pull)", "send_recv"),
    Library("NVIDIA/TransformerEngine: userbuffers.cu", r"userbuffers_", "all_reduce"),
    Library("NVIDIA/nvshmem: fcollect and rdxn", r"fcollect", "all_gather"),
    Library("NVIDIA/nvshmem: fcollect and rdxn", r"rdxn", "all_reduce"),
    Library(
        "NVIDIA/nvshmem, ROCm/rocSHMEM, oneapi-src/ishmem: device/launch, on_stream",
        r"(nv|roc|i)shmem(?!.*(init|finali[sz]e))|_on_stream_kernel",
        "put",
    ),
    Library("microsoft/mscclpp", r"mscclpp"),
    Library(
        "pytorch/pytorch: torch/csrc/distributed/c10d/symm_mem, intra_node_comm.cu",
        r"symm(etric)?_?mem|intra_node_comm|multimem_",
    ),
    Library(
        "One-sided puts and signals: pytorch's CUDASymmetricMemory.cu, NVSHMEM's and NCCL's device "
        "interfaces",
        r"(put|wait|get)_?signal|signal_?wait|(put|get)mem|(put|get)_nbi|rma_(put|get)|"
        r"ibgda|(?<![a-z])(one_?sided|rdma)_?(put|get|write|read|send|copy)|"
        r"(remote|peer|p2p)_?(put|get|write|send|copy)",
        "put",
    ),
    Library(
        "Kernels that are called after a collective: custom all-reduces of every library",
        rf"(?<!block)(?<!block_)(?<!warp)(?<!warp_)(?<!lane_)({_COLLECTIVE})(?!_?copy_?(in|out))",
    ),
)

_OF_A_LIBRARY = re.compile("|".join(f"(?:{library.pattern})" for library in LIBRARIES))

_SURER_THAN_WORDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")

_ALSO_COMPUTES = re.compile(
    r"gemm|matmul|(?<![a-z])b?mm(?![a-z])|mega_?moe|fused_?moe|atten?tion|attn|flash_|flux"
)
_ANYWHERE = re.compile(
    rf"{_COLLECTIVE}|mscclpp|(nv|roc)shmem|deep_?ep|quick_?reduce|multimem|symm_?mem|lamport|[nrhx]ccl"
)
"""In the whole name, parameters and all."""

_COMPUTES = re.compile(
    r"at::native|gemm|gemv|matmul|cutlass|cublas|cudnn|nvjet|triton_|elementwise|flash|attn|"
    r"softmax|norm_|_norm|multi_tensor|conv|index|reduce_kernel|tensile|^cijk|miopen"
)

_OF_INDUCTOR = re.compile(r"triton_(\w+_)?fused(_|$)")
"""Inductor names a fused kernel after the operators around it; it only computes."""


def kind_of_kernel(name: str) -> Kind:
    """Return the kind of operation of a kernel that communicates, as far as its name tells."""
    library = _library_of(name)
    if library is not None and library.kind in _SURER_THAN_WORDS:
        return library.kind  # a cross_device_reduce is an all-reduce
    told = kind_of(_function(name))
    return library.kind if told == "unknown" and library is not None else told


def is_of_nccl(name: str) -> bool:
    """Return whether a kernel is one of NCCL's, RCCL's or MSCCL's."""
    return _library_of(name) is LIBRARIES[0]


def is_communication_kernel(name: str) -> bool:
    """Return whether a kernel's name is one by which a library communicates."""
    return _library_of(name) is not None


def may_be_communication(name: str) -> bool:
    """Return whether a kernel's name suggests communication that is not known for certain."""
    return (
        _library_of(name) is None
        and not _OF_INDUCTOR.match(name)
        and _ANYWHERE.search(name.lower()) is not None
    )


def carries_details(name: str) -> bool:
    """Return whether the arguments of an event with this name can describe communication."""
    return (
        name.startswith(("c10d::", COMMS_RECORD))
        or backend_of(name) is not None
        or is_communication_kernel(name)
        or may_be_communication(name)
    )


def is_known_to_compute(name: str) -> bool:
    """Return whether a kernel's name is one by which torch, its libraries or a compiler compute."""
    return _COMPUTES.search(name.lower()) is not None


@cache
def _library_of(name: str) -> Library | None:
    function = _function(name)
    if (
        not _OF_A_LIBRARY.search(function)
        or _OF_INDUCTOR.match(name)
        or _ALSO_COMPUTES.search(function.rpartition("::")[2])
    ):
        return None
    return next((one for one in LIBRARIES if re.search(one.pattern, function)), None)


def _function(name: str) -> str:
    """Return a kernel's function with its namespaces in lower case, without types.

    ``void deep_ep::intranode::dispatch<8, 768>(int4*, …)`` → ``deep_ep::intranode::dispatch``.
    """
    text = _demangled(name).replace("(anonymous namespace)::", "")
    text = re.split(r"[<(]", text.removeprefix("void "), maxsplit=1)[0]
    return text.strip().lower()


def _demangled(name: str) -> str:
    """Return the qualified name in a mangled C++ name; another name as it is."""
    start = re.match(r"_ZN?K?", name)
    parts, rest = [], name[start.end() :] if start else ""
    while length := re.match(r"(\d+)(?=\D)", rest):
        end = length.end() + int(length[1])
        parts.append(rest[length.end() : end])
        rest = rest[end:]
    return "::".join(parts) or name
