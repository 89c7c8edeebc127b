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
    """

    program: str
    reduces: bool | None
    rooted: bool
    shares: bool


OPERATIONS = MappingProxyType(
    {
        "all_reduce": Operation("all_reduce", reduces=True, rooted=False, shares=False),
        "all_gather": Operation("all_gather", reduces=False, rooted=False, shares=True),
        "reduce_scatter": Operation("reduce_scatter", reduces=True, rooted=False, shares=True),
        "broadcast": Operation("broadcast", reduces=False, rooted=True, shares=False),
        "reduce": Operation("reduce", reduces=True, rooted=True, shares=False),
        "all_to_all": Operation("alltoall", reduces=False, rooted=False, shares=True),
        "send_recv": Operation("sendrecv", reduces=None, rooted=False, shares=False),
        "gather": Operation("gather", reduces=False, rooted=True, shares=True),
        "scatter": Operation("scatter", reduces=False, rooted=True, shares=True),
        "hypercube": Operation("hypercube", reduces=False, rooted=False, shares=True),
    }
)
"""By scalebench's name."""

ALWAYS_BUSBW = frozenset({"hypercube"})
"""Tests whose algbw column holds the busbw in every version."""

ONCE_BUSBW = frozenset({"all_gather", "reduce_scatter"})
"""Tests whose algbw column held the busbw until 2020."""

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


def busbw_factor(op: str, world_size: int) -> float:
    """Return busbw / algbw of an operation among ``world_size`` ranks."""
    if op == "all_reduce":
        return 2 * (world_size - 1) / world_size
    if OPERATIONS[op].shares:
        return (world_size - 1) / world_size
    return 1.0


def ops_named_in(text: str) -> set[str]:
    """Return the operations whose test programs (``all_reduce_perf``) a text names."""
    return {_OP_OF_PROGRAM[program] for program in _PROGRAM.findall(text)}
