"""The operations that nccl-tests measures: what their rows look like, and their busbw factors.

Source: doc/PERFORMANCE.md and the ``GetBw`` and ``GetCollByteCount`` functions of nccl-tests.
"""

import re
from dataclasses import dataclass
from types import MappingProxyType

from scalebench.costmodel.links import laws


@dataclass(frozen=True)
class Operation:
    """The shape of an operation's rows.

    Attributes:
        program: What its test is called, before ``_perf``.
        reduces: Whether rows name a reduction; None: some versions print one, some do not.
        rooted: Whether rows name a root.
        shares: Whether the count column is one rank's share, so that
            size = count × bytes of an element × world size.
        checks_in_place: Whether in-place results are checked; those of other tests are N/A.
        algbw_is_busbw: Whether the algbw column holds the busbw, most likely answer first.
    """

    program: str
    reduces: bool | None = False
    rooted: bool = False
    shares: bool = False
    checks_in_place: bool = True
    algbw_is_busbw: tuple[bool, ...] = (False,)


_EARLY = (False, True)
"""Early versions, in logs up to 2020, print the busbw in the algbw column."""

OPERATIONS = MappingProxyType(
    {
        "all_reduce": Operation("all_reduce", reduces=True),
        "all_gather": Operation("all_gather", shares=True, algbw_is_busbw=_EARLY),
        "reduce_scatter": Operation(
            "reduce_scatter", reduces=True, shares=True, algbw_is_busbw=_EARLY
        ),
        "broadcast": Operation("broadcast", rooted=True),
        "reduce": Operation("reduce", reduces=True, rooted=True),
        "all_to_all": Operation("alltoall", shares=True, checks_in_place=False),
        "send_recv": Operation("sendrecv", reduces=None, checks_in_place=False),
        "gather": Operation("gather", rooted=True, shares=True),
        "scatter": Operation("scatter", rooted=True, shares=True),
        "hypercube": Operation("hypercube", shares=True, algbw_is_busbw=(True,)),
    }
)
"""By scalebench's name."""

_OP_OF_PROGRAM = {operation.program: name for name, operation in OPERATIONS.items()}
_PROGRAM = re.compile(
    rf"(?<![a-zA-Z0-9_])(?:nccl_)?({'|'.join(_OP_OF_PROGRAM)})_perf(?![a-zA-Z0-9])"
)

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
        "fp8_e4m3": ("float8_e4m3fn", 1),
        "fp8_e5m2": ("float8_e5m2", 1),
    }
)
"""nccl-tests' name of a data type, or rccl-tests' → torch's, and the bytes of an element."""


def busbw_factor(op: str, world_size: int | None) -> float | None:
    """Return busbw / algbw of an operation; None: it depends on a world size that is not known."""
    shares = OPERATIONS[op].shares
    if op != "all_reduce" and not shares:
        return 1.0
    if world_size is None:
        return None
    return laws.busbw_factor("all_gather" if shares else op, world_size)


def ops_named_in(text: str) -> set[str]:
    """Return the operations whose test programs (``all_reduce_perf``) a text names."""
    return {_OP_OF_PROGRAM[program] for program in _PROGRAM.findall(text)}
