"""One run of a test as its file has it: what both formats are read into."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from scalebench.costmodel.links.nccl_tests.operations import DTYPES

NUMBER = r"[-+]?\d{1,18}(?:\.\d{1,18})?(?:e(?:-\d{1,3}|\+?\d{1,2}))?"


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
