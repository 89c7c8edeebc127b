"""Which kernels communicate, by the names that libraries give them.

A name is looked at without its parameters and template arguments: those tell types, not what the
kernel does. A kernel that both computes and communicates (a matrix product with an all-reduce in
it) counts as computation, and is named as one that may communicate.
"""

import re
from functools import cache
from typing import NamedTuple

from scalebench.trace.operations.names import COMMS_RECORD, backend_of, kind_of
from scalebench.trace.timeline import Kind


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
