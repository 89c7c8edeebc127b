"""Calls of collectives as dumps of several ranks tell them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from scalebench.trace.operations.names import kind_of

_LARGEST = 2**62

Source = Literal["flight recorder", "NCCL Inspector"]


def number(value: object) -> float:
    """Return a number of a dump; raises ValueError where it is none, below zero, or too large."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"a number is missing: {type(value).__name__} is none")
    found = float(value)
    if not 0 <= found < _LARGEST:
        raise ValueError(f"{found:g} is out of range")
    return found


def text(value: object) -> str:
    """Return a text of a dump; raises ValueError where it is a list, or another thing."""
    if not isinstance(value, str | int):
        raise ValueError(f"a text is missing: {type(value).__name__} is none")
    return str(value)


@dataclass(frozen=True)
class Call:
    """One collective on one rank.

    Attributes:
        group: Name of its process group or communicator, the same on all its ranks.
        sequence: Number among the collectives that are counted together.
        name: As the library calls it, ``all_reduce``.
        elements_in: Elements that the rank handed in; None: not told. ``elements_out`` likewise.
        num_bytes: The full size, as nccl-tests counts; None: not told.
        finished: Whether it had ended when the dump was taken.
        lasted_s: Time on the device; None: not recorded.
        where: The innermost line of code outside torch, ``train.py:12``; empty: not recorded.
        busbw_byte_per_s: As the dump itself tells it; None: it does not.
    """

    group: str
    rank: int
    sequence: int
    name: str
    elements_in: int | None = None
    elements_out: int | None = None
    dtype: str = ""
    num_bytes: int | None = None
    finished: bool = True
    lasted_s: float | None = None
    where: str = ""
    busbw_byte_per_s: float | None = None

    @property
    def size(self) -> str:
        """What has to fit between the ranks, as text: of which side depends on the operation."""
        kind, uneven = kind_of(self.name), self.name.endswith(("_v", "_v_single"))
        sides = [self.elements_in, self.elements_out]
        if kind == "all_to_all":
            return self.dtype  # only the sums over all ranks have to fit
        if kind == "scatter" or (kind == "all_gather" and uneven):
            sides = [self.elements_out]
        elif kind in ("gather", "reduce") or (kind == "reduce_scatter" and uneven):
            sides = [self.elements_in]
        counts = " → ".join(str(side) for side in dict.fromkeys(sides) if side is not None)
        if not counts and self.num_bytes is not None:
            return f"{self.num_bytes} bytes"
        return f"{counts} {self.dtype}".strip()


@dataclass(frozen=True)
class Dumps:
    """The dumps of one job.

    Attributes:
        members: Group → its ranks, where the dumps tell them.
        given: Group → ranks of which a dump was given.
        pending: Point-to-point operations that had not ended, as text.
    """

    source: Source
    calls: tuple[Call, ...]
    members: Mapping[str, frozenset[int]]
    given: Mapping[str, frozenset[int]]
    pending: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
