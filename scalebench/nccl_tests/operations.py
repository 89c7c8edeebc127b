"""The operations that nccl-tests measures: what their rows look like, and their busbw factors.

Source: doc/PERFORMANCE.md and the ``GetBw`` and ``GetCollByteCount`` functions of nccl-tests.
"""

import re
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Operation:
    """The shape of an operation's rows.

    Attributes:
        program: What its test is called, before ``_perf``.
        reduces: Whether rows name a reduction; None: some versions print one, some do not.
        rooted: Whether rows name a root.
        shares: Whether the count column is one rank's share, so that
            size = count × bytes of an element × world size.
        checks_in_place: Whether in-place results are checked; the results of a test that does not
            support it are N/A, even where the out-of-place ones are checked.
    """

    program: str
    reduces: bool | None
    rooted: bool
    shares: bool
    checks_in_place: bool = True


OPERATIONS = MappingProxyType(
    {
        "all_reduce": Operation("all_reduce", reduces=True, rooted=False, shares=False),
        "all_gather": Operation("all_gather", reduces=False, rooted=False, shares=True),
        "reduce_scatter": Operation("reduce_scatter", reduces=True, rooted=False, shares=True),
        "broadcast": Operation("broadcast", reduces=False, rooted=True, shares=False),
        "reduce": Operation("reduce", reduces=True, rooted=True, shares=False),
        "all_to_all": Operation(
            "alltoall", reduces=False, rooted=False, shares=True, checks_in_place=False
        ),
        "send_recv": Operation(
            "sendrecv", reduces=None, rooted=False, shares=False, checks_in_place=False
        ),
        "gather": Operation("gather", reduces=False, rooted=True, shares=True),
        "scatter": Operation("scatter", reduces=False, rooted=True, shares=True),
        "hypercube": Operation("hypercube", reduces=False, rooted=False, shares=True),
    }
)
"""By scalebench's name."""

ALWAYS_BUSBW = frozenset({"hypercube"})
"""Tests whose algbw column holds the busbw in every version."""

ONCE_BUSBW = frozenset({"all_gather", "reduce_scatter"})
"""Tests whose algbw column held the busbw in early versions (logs up to 2020)."""

_PROGRAM = re.compile(
    r"(?<![a-zA-Z0-9_])(?:nccl_)?("
    + "|".join(operation.program for operation in OPERATIONS.values())
    + r")_perf(?![a-zA-Z0-9])"
)
_OP_OF_PROGRAM = {operation.program: name for name, operation in OPERATIONS.items()}

DTYPES = MappingProxyType(
    {
        "int8": ("int8", 1),
        "char": ("int8", 1),
        "uint8": ("uint8", 1),
        "int32": ("int32", 4),
        "int": ("int32", 4),
        "uint32": ("uint32", 4),
        "int64": ("int64", 8),
        "uint64": ("uint64", 8),
        "half": ("float16", 2),
        "float": ("float32", 4),
        "double": ("float64", 8),
        "bfloat16": ("bfloat16", 2),
        "f8e4m3": ("float8_e4m3fn", 1),
        "f8e5m2": ("float8_e5m2", 1),
    }
)
"""nccl-tests' name of a data type → torch's, and the bytes of an element."""


def busbw_factor(op: str, world_size: int | None) -> float | None:
    """Return busbw / algbw of an operation; None: it depends on a world size that is not known."""
    if op != "all_reduce" and not OPERATIONS[op].shares:
        return 1.0
    if world_size is None:
        return None
    share = (world_size - 1) / world_size
    return 2 * share if op == "all_reduce" else share


def ops_named_in(text: str) -> set[str]:
    """Return the operations whose test programs (``all_reduce_perf``) a text names."""
    return {_OP_OF_PROGRAM[program] for program in _PROGRAM.findall(text)}
