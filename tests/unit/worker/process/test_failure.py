import pytest
import torch
import torch.distributed as dist

from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.records.rank import RankError
from scalebench.worker.process.failure import Unsupported, classify, describe

GLOO = "[../third_party/gloo/gloo/transport/tcp/pair.cc:553] "


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UsageError("no such workload"), "usage"),
        (Unsupported("needs blocks"), "unsupported"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "oom"),
        (MemoryError(), "oom"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried …"), "oom"),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried …"), "oom"),
        (RuntimeError(GLOO + "Connection closed by peer [127.0.0.1]:4711"), "peer"),
        (RuntimeError(GLOO + "Connection reset by peer"), "peer"),
        (RuntimeError(GLOO + "Timed out waiting 120000ms for recv operation"), "peer"),
        (dist.DistBackendError("NCCL communicator was aborted on rank 1."), "peer"),
        (dist.DistBackendError("remote process exited or there was a network error"), "peer"),
        (dist.DistStoreError("Socket: Broken pipe"), "peer"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "exception"),
        (ValueError("Connection closed by peer"), "exception"),  # not from a collective
        (FileNotFoundError(2, "No such file"), "exception"),
        (EnvironmentUnfit("no CUDA"), "exception"),
        (KeyboardInterrupt(), "exception"),
        (SystemExit(3), "exception"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_an_exception_stands_for(error, kind):
    assert classify(error) == kind


def test_a_slow_data_loader_is_the_users_own_failure_and_no_lost_peer():
    assert classify(RuntimeError("DataLoader timed out after 5 seconds")) == "exception"


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return describe(caught)


def test_a_description_has_the_type_the_first_line_and_the_traceback():
    found = raised(RuntimeError("it broke\nand here is more"))
    assert found.message == "RuntimeError: it broke"
    assert found.kind == "exception"
    assert "and here is more" in found.traceback
    assert "def raised" not in found.traceback
    assert "raise error" in found.traceback
    assert found.time_ns > 0


def test_what_is_meant_for_the_user_is_told_without_a_type():
    assert raised(UsageError("Give another workload.")).message == "Give another workload."
    assert raised(Unsupported("needs blocks")).message == "needs blocks"


@pytest.mark.parametrize("text", ["", "  \n ", None])
def test_an_error_without_a_text_is_described_by_its_type(text):
    found = raised(ValueError() if text is None else ValueError(text))
    assert "ValueError" in found.message


@pytest.mark.parametrize("text", ["file \udcff.bin", "nul \0", "\x1b[31mred", "größe", "x" * 10**6])
def test_any_text_can_be_described_and_stored(text):
    found = raised(OSError(text))
    assert RankError.model_validate_json(found.model_dump_json()) == found
