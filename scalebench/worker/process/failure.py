"""Errors inside a rank, sorted by what they mean to the reader of the result."""

import time
import traceback
from collections.abc import Collection

from scalebench.errors import UsageError
from scalebench.records.rank import ErrorKind, RankError

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
_CPU_OOM_TEXTS = ("can't allocate memory", "not enough memory")


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

    Args:
        types: Names of its class and of the classes above.
        text: What it says.
    """
    is_runtime_error = "RuntimeError" in types  # DistError and gloo's own are RuntimeErrors
    if {"OutOfMemoryError", "MemoryError"} & set(types):
        return "oom"
    if is_runtime_error and any(t in text for t in _CPU_OOM_TEXTS):
        return "oom"
    if is_runtime_error and any(t in text for t in _PEER_TEXTS):
        return "peer"
    return "exception"


def storable(text: str) -> str:
    """Return a text that JSON can hold: lone surrogates, as in odd file names, are replaced."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


def describe(error: BaseException) -> RankError:
    """Turn an exception into the record that the rank leaves."""
    first_line = storable(str(error).strip() or type(error).__name__).splitlines()[0]
    known = isinstance(error, UsageError | Unsupported)
    return RankError(
        kind=classify(error),
        message=first_line if known else f"{type(error).__name__}: {first_line}",
        traceback=storable("".join(traceback.format_exception(error))),
        time_ns=time.monotonic_ns(),
    )
