"""One run of an nccl-tests program, whatever its format, and the operations that there are.

The operations that nccl-tests measures: what their rows look like, and their busbw factors.

Source: doc/PERFORMANCE.md and the ``GetBw`` and ``GetCollByteCount`` functions of nccl-tests.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Self

from scalebench.costmodel.links import laws

NUMBER = r"[-+]?\d{1,18}(?:\.\d{1,18})?(?:e(?:-\d{1,3}|\+?\d{1,2}))?"


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


class Printed(NamedTuple):
    """A number as it was printed, and the bounds between which rounding puts the true one."""

    value: float
    low: float
    high: float

    @classmethod
    def parse(cls, text: str | None) -> Self | None:
        """Return the number; the bounds are half a unit of its last digit. None: no number."""
        if not text or not re.fullmatch(NUMBER, text):
            return None
        mantissa, _, exponent = text.partition("e")
        half = 0.5 * 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
        return cls(float(text), float(text) - half, float(text) + half)


@dataclass(frozen=True)
class Point:
    """One measurement: an operation at one size, out of place or in place.

    Attributes:
        size_bytes: The full size, as nccl-tests counts it: of all-gather the gathered one.
        count: The count argument of the call, in elements: of all-gather one rank's share.
        dtype: As torch spells it.
        itemsize: Bytes of an element.
        redop: ``sum``, ``prod``, ``max``, ``min``, ``avg`` or ``mulsum``; None: the operation
            reduces nothing.
        root: The root's rank; None: the operation has none.
        in_place: Whether input and output were the same memory.
        time_us: Average time of the operation; None: the log has the call's CPU time instead.
        algbw_gb_per_s: What the column holds: size / time, or the busbw.
        busbw_gb_per_s: Size / time, times the operation's factor.
        num_wrong: Wrong elements; None: not checked, or an older version that does not count.
        deviation: Largest deviation, which older versions print instead; infinite: the log marks
            it as too large.
        place: Where it stands in the file.
        failed_check: Whether the log says that the result is wrong, and not in how many elements.
    """

    size_bytes: int
    count: int
    dtype: str
    itemsize: int
    redop: str | None
    root: int | None
    in_place: bool
    time_us: Printed | None
    algbw_gb_per_s: Printed
    busbw_gb_per_s: Printed
    num_wrong: int | None
    place: str
    deviation: float | None = None
    failed_check: bool = False

    @property
    def is_wrong(self) -> bool:
        """Whether the log says that the result is wrong."""
        return self.failed_check or bool(self.num_wrong)

    @property
    def time_s(self) -> float | None:
        """The time as it was printed; None as for ``time_us``."""
        return self.time_us and self.time_us.value * 1e-6


def points_of(columns: Mapping[str, str | None], place: str) -> Iterator[Point]:
    """Yield the measurements of a row.

    The columns of the results have 0 (out of place) or 1 (in place) behind their names.
    """
    dtype, itemsize = DTYPES[columns["type"] or ""]
    redop, root = columns.get("redop"), int(columns.get("root") or -1)
    for i in (0, 1):
        time, algbw, busbw, wrong = (
            Printed.parse(columns.get(f"{name}{i}")) for name in ("time", "algbw", "busbw", "wrong")
        )
        if algbw is None or busbw is None:
            continue
        yield Point(
            size_bytes=int(columns["size"] or 0),
            count=int(columns["count"] or 0),
            dtype=dtype,
            itemsize=itemsize,
            redop=None if redop in ("none", "") else redop,
            root=None if root < 0 else root,
            in_place=i == 1,
            time_us=time,
            algbw_gb_per_s=algbw,
            busbw_gb_per_s=busbw,
            num_wrong=wrong and round(wrong.value),
            place=place,
            deviation=_deviation(columns.get(f"error{i}") or ""),
        )


def _deviation(text: str) -> float | None:
    """Return a deviation as printed; RCCL's tests put an asterisk behind one that is too large."""
    found = Printed.parse(text.removesuffix("*"))
    return math.inf if found and text.endswith("*") else found and found.value


class Rank(NamedTuple):
    """One line of the list of devices; ``group`` is the communicator's colour."""

    rank: int
    group: int


@dataclass
class Run:
    """One start of a test; what the file does not tell is None, or empty.

    Attributes:
        path: The file.
        program: The test that its header names, ``all_reduce_perf``.
        commanded: The operations that command lines before it name.
        ranks_per_process: Threads times devices of each.
        left_out: Rows that cannot be read: where they are, and why.
        has_footer: Whether the table is whole.
    """

    path: Path
    program: str = ""
    commanded: set[str] = field(default_factory=set)
    ranks_per_process: int | None = None
    ranks: list[Rank] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    has_footer: bool = False
    average_busbw_gb_per_s: float | None = None
    num_out_of_bounds: int | None = None

    def group(self) -> list[Rank]:
        """Return the ranks that the table is about: those of the first rank's group."""
        first = min(self.ranks, default=None)
        return [rank for rank in self.ranks if first and rank.group == first.group]

    def why_world_size_is_unknown(self) -> str | None:
        """Return what is wrong with the list of ranks; None: the group's length is the number."""
        if not self.ranks:
            return "the log does not list the ranks"
        numbers = [rank.rank for rank in self.ranks]
        number, times = Counter(numbers).most_common(1)[0]
        if times > 1:
            return (
                f"rank {number} is listed {times} times: several jobs wrote into one "
                "log, as mpirun does when nccl-tests is built without MPI"
            )
        if max(numbers) >= len(numbers):
            return f"the list of ranks has gaps: {len(numbers)} lines up to {max(numbers)}"
        if self.ranks_per_process and len(numbers) % self.ranks_per_process:
            return (
                f"the list of ranks is cut off: {len(numbers)} lines, {self.ranks_per_process} for "
                "each process"
            )
        return None
