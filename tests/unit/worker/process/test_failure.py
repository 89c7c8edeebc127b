import re

import pytest
import torch
import torch.distributed as dist
from torch._dynamo.exc import BackendCompilerFailed
from torch._inductor.exc import InductorError

from scalebench.errors import UsageError
from scalebench.records.measured.rank import RankError
from scalebench.worker.process.failure import Unsupported, building_nothing, classify, describe
from tests.examples import cases

NCCL = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled cuda error "
    "(run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\nncclUnhandledCudaError: Call to "
    "CUDA function failed.\nLast error:\n"
)
HINT = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the "
    "stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
)
TRIED = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.81 GiB"


def from_inductor(error):
    return InductorError(error, None)


FULL = [
    torch.OutOfMemoryError(TRIED),
    torch.AcceleratorError("CUDA error: out of memory" + HINT),
    RuntimeError("HIP error: out of memory" + HINT),
    RuntimeError("CUDA driver error: out of memory"),  # expandable segments
    RuntimeError("Triton Error [CUDA]: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("miopenStatusAllocFailed"),
    dist.DistBackendError(NCCL + "Cuda failure 2 'out of memory'"),
    dist.DistBackendError(NCCL + "Cuda failure 'out of memory'"),
    dist.DistBackendError(NCCL + "Failed to CUDA calloc 6291456 bytes"),
    dist.DistBackendError(NCCL + "Failed to CUDA calloc async 608 bytes"),
    from_inductor(torch.OutOfMemoryError(TRIED)),
    BackendCompilerFailed("inductor", torch.OutOfMemoryError(TRIED), None),
    from_inductor(RuntimeError("Triton Error [CUDA]: out of memory")),
]
NOT_FULL = [
    dist.DistBackendError(NCCL + "Cuda failure 1 'invalid argument'"),
    torch.AcceleratorError("CUDA error: an illegal memory access was encountered" + HINT),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"),
    from_inductor(RuntimeError("out of resource: shared memory, Required: 262144")),
    ValueError("the user's own text on running out of memory"),
]


@cases("error", *FULL, *NOT_FULL, ids=lambda error: str(error)[-60:])
def test_every_way_to_run_out_of_memory_is_one_and_its_message_says_so(error):
    if error in NOT_FULL:
        assert classify(error) == "exception"
        return
    assert classify(error) == "oom"
    message = describe(error).message
    assert "\n" not in message
    assert re.search("out of memory|alloc", message, re.IGNORECASE), message


GLOO = "[../third_party/gloo/gloo/transport/tcp/pair.cc:553] "


@cases(
    "error, kind",
    (UsageError("no such workload"), "usage"),
    (Unsupported("needs blocks"), "unsupported"),
    (MemoryError(), "oom"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried …"), "oom"),
    (RuntimeError("DefaultCPUAllocator: not enough memory: you tried …"), "oom"),
    (RuntimeError(GLOO + "Connection closed by peer [127.0.0.1]:4711"), "peer"),
    (RuntimeError(GLOO + "Timed out waiting 120000ms for recv operation"), "peer"),
    (dist.DistBackendError("NCCL communicator was aborted on rank 1."), "peer"),
    (dist.DistStoreError("Socket: Broken pipe"), "peer"),
    (ValueError("Connection closed by peer"), "exception"),  # not from a collective
    (KeyboardInterrupt(), "exception"),
    (RuntimeError("DataLoader timed out after 5 seconds"), "exception"),  # no peer of ours
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_an_exception_stands_for(error, kind):
    assert classify(error) == kind


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return describe(caught)


def test_a_description_has_the_type_the_first_line_and_the_traceback():
    found = raised(RuntimeError("it broke\nand here is more"))
    assert (found.message, found.kind) == ("RuntimeError: it broke", "exception")
    assert "and here is more" in found.traceback and "raise error" in found.traceback
    assert "def raised" not in found.traceback and found.time_ns > 0


@cases("text", "file \udcff.bin", "nul \0", "\x1b[31mred", "größe", "x" * 10**6)
def test_any_text_can_be_described_and_stored(text):
    found = raised(OSError(text))
    assert RankError.model_validate_json(found.model_dump_json()) == found


@cases(
    "told, flag",
    ("Unable to JIT load the deepspeed_shm_comm op due to ninja", "DS_BUILD_SHM_COMM=1"),
    ("Error building extension 'cpu_adam': ninja: build stopped", "DS_BUILD_CPU_ADAM=1"),
    ("DeepSpeedCPUAdam requires the cpu_adam op, which failed to build/load.", "_CPU_ADAM=1"),
    ("Ninja is required to load C++ extensions", "DS_BUILD_OPS=1"),
)
def test_a_build_that_fails_is_one_line_with_the_way_round_it(told, flag):
    with pytest.raises(Unsupported, match=flag) as error, building_nothing():
        raise RuntimeError(f"{told}\nmore")
    assert "\n" not in str(error.value)
    with pytest.raises(RuntimeError, match="something else"), building_nothing():
        raise RuntimeError("something else")
