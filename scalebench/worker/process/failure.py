"""Errors inside a rank, sorted by what they mean; and errors that the self-test asks for.

What concerns the training is done by the workload, see `workloads.loaded`, which asks here.
"""

import re
import time
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from scalebench.errors import UsageError
from scalebench.records.measured.rank import ErrorKind, RankError
from scalebench.spec.probes import InjectedFault

MUCH_LARGER = 10

_injected: list[InjectedFault] = []


def inject(what: InjectedFault, rank: int) -> None:
    """Inject a fault for the rest of this process's life."""
    _injected.append(what)
    if what.kind == "wrong_elements" and rank == what.rank:
        _spoil_all_reduce(what.count)
    elif what.kind == "false_clock" and rank == what.rank:
        _put_clock_ahead(round(what.seconds * 1e9))


def injected_fault() -> InjectedFault:
    """Return what was injected into this process."""
    return _injected[-1]


@contextmanager
def written_down(what: InjectedFault, rank: int) -> Iterator[None]:
    """Note how long the block took, in the rank's file."""
    began = time.perf_counter()
    yield
    with open(f"{what.log}.rank{rank}", "a") as log:
        log.write(f"{time.perf_counter() - began}\n")


def _spoil_all_reduce(count: int) -> None:
    """Change ``count`` elements of the first result that is much larger than that."""
    original = dist.all_reduce
    seen: list[int] = []

    def spoiled(tensor: torch.Tensor, *arguments: Any, **settings: Any) -> Any:
        work = original(tensor, *arguments, **settings)
        if not seen and settings.get("group") is None and tensor.numel() > MUCH_LARGER * count:
            seen.append(1)
            tensor[::MUCH_LARGER][:count] += 1
        return work

    dist.all_reduce = spoiled


def _put_clock_ahead(by_ns: int) -> None:
    original = time.monotonic_ns
    time.monotonic_ns = lambda: original() + by_ns


_PEER_TEXTS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "Timed out waiting",
    "collective operation timeout",
    "wait timeout after",
    "NCCL communicator was aborted",
    "remote process exited",
    "the parameter server lost worker",
)
_OUT_OF_MEMORY = re.compile(
    r"""\bout\ of\ memory\b             # CUDA, HIP, NCCL ("Cuda failure 2 '…'"), Triton, Inductor
    | \bFailed\ to\ CUDA\ (\w+\ )?(calloc|malloc)   # NCCL and RCCL
    | STATUS_(\w+_)?ALLOC(ATION)?_FAILED        # cuBLAS, cuDNN, hipBLAS, …
    | \bmiopenStatusAllocFailed\b
    | can't\ allocate\ memory | not\ enough\ memory  # torch's allocator of the CPU
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""What those say who allocate by themselves, and so raise no ``OutOfMemoryError``."""

_EXTENSION = re.compile(r"(?:JIT load the|building extension|requires the) '?(\w+)")
_BUILD_TEXTS = (
    *("JIT load", "failed to build/load", "Ninja is required"),
    *("Error building extension", "torch_extensions"),
)
"""What a framework says that compiles an extension when it starts, and fails."""


class Unsupported(Exception):
    """This strategy cannot run with this workload or on this machine; the text says why."""


def classify(error: BaseException) -> ErrorKind:
    """Return what kind of failure an exception stands for."""
    if isinstance(error, UsageError):
        return "usage"
    if isinstance(error, Unsupported):
        return "unsupported"
    return kind_of({kind.__name__ for kind in type(error).__mro__}, str(error))


def kind_of(types: Collection[str], text: str) -> ErrorKind:
    """Return what kind of failure an exception of any process stands for.

    ``types``: names of its class and of the classes above.
    """
    is_runtime_error = "RuntimeError" in types  # DistError and gloo's own are RuntimeErrors
    if {"OutOfMemoryError", "MemoryError"} & set(types):
        return "oom"
    if is_runtime_error and _OUT_OF_MEMORY.search(text):
        return "oom"
    if is_runtime_error and any(t in text for t in _PEER_TEXTS):
        return "peer"
    return "exception"


def storable(text: str) -> str:
    """Return a text that JSON can hold: lone surrogates, as in odd file names, are replaced."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


def first_line_of(message: str) -> str:
    """Return the first line, and of a traceback that a message holds the error under it.

    So torch passes on what was raised in a DataLoader's worker or in a process that it started.
    """
    text = storable(message)
    before, begun, within = text.rpartition("Traceback (most recent call last)")
    told = [line for line in within.splitlines()[1:] if line and not line[0].isspace()]
    if not (begun and told):
        return text.splitlines()[0]
    return ": ".join([*(line.rstrip(".:") for line in before.splitlines()[:1]), told[0]])


def describe(error: BaseException) -> RankError:
    """Turn an exception into the record that the rank leaves."""
    text = str(error).strip() or type(error).__name__
    first_line, others = first_line_of(text), storable(text).splitlines()[1:]
    kind = classify(error)
    if kind == "oom" and not _OUT_OF_MEMORY.search(first_line):  # NCCL tells it last
        first_line = ": ".join([first_line, *filter(_OUT_OF_MEMORY.search, others)][:2])
    known = isinstance(error, UsageError | Unsupported)
    return RankError(
        kind=kind,
        message=first_line if known else f"{type(error).__name__}: {first_line}",
        traceback=storable("".join(traceback.format_exception(error))),
        time_ns=time.monotonic_ns(),
    )


@contextmanager
def building_nothing() -> Iterator[None]:
    """Say in one line that a framework wanted to compile something and could not.

    Raises:
        Unsupported: It tried to, and failed.
    """
    try:
        yield
    except (RuntimeError, ImportError, OSError) as error:
        if not any(text in str(error) for text in _BUILD_TEXTS):
            raise
        first_line = (str(error).splitlines() or [""])[0]
        raise Unsupported(
            f"the framework compiles an extension when it starts, and that failed ({first_line}); "
            f"install g++ and ninja, or build it beforehand with {_flag(first_line)}=1 pip install "
            "--no-build-isolation deepspeed"
        ) from error


def _flag(text: str) -> str:
    """Return DeepSpeed's variable that builds the extension of an error's text beforehand."""
    named = _EXTENSION.search(text)
    return f"DS_BUILD_{named[1].removeprefix('deepspeed_').upper()}" if named else "DS_BUILD_OPS"
