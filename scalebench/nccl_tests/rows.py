"""One row of a table, before it is known to which operation it belongs."""

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Self

_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(e[-+]?\d{1,3})?", re.IGNORECASE)


@dataclass(frozen=True)
class Printed:
    """A number as it was printed, and the bounds between which rounding puts the true one."""

    value: float
    low: float
    high: float

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the number; the bounds are half a unit of its last digit. None: no number."""
        if not _NUMBER.fullmatch(text):
            return None
        number = Decimal(text)
        exponent = number.as_tuple().exponent
        assert isinstance(exponent, int)
        half = float(Decimal((0, (5,), exponent - 1)))
        value = float(number)
        return cls(value, value - half, value + half) if math.isfinite(value) else None


@dataclass(frozen=True)
class Measured:
    """The columns of one mode.

    Attributes:
        in_place: The mode.
        time_us: None: the table has CPU times.
        cpu_time_us: None: the table has times.
        algbw_gb_per_s: 1e9 bytes per second.
        busbw_gb_per_s: 1e9 bytes per second.
        num_wrong: See `Point`.
        largest_deviation: See `Point`.
    """

    in_place: bool
    time_us: Printed | None
    cpu_time_us: Printed | None
    algbw_gb_per_s: Printed
    busbw_gb_per_s: Printed
    num_wrong: int | None
    largest_deviation: float | None


@dataclass(frozen=True)
class Row:
    """One row. ``dtype`` is torch's, ``itemsize`` the bytes of an element."""

    place: str
    size_bytes: int
    count: int
    dtype: str
    itemsize: int
    redop: str | None
    root: int | None
    measured: tuple[Measured, ...]

    @property
    def num_shares(self) -> int | None:
        """How often the count goes into the size; None: not a whole number, or no elements."""
        one = self.count * self.itemsize
        return self.size_bytes // one if one and self.size_bytes % one == 0 else None

    @property
    def checks_in_place(self) -> bool | None:
        """Whether the in-place result was checked; None: neither was, or only one is there."""
        counts = [measured.num_wrong for measured in self.measured]
        return counts[1] is not None if len(counts) == 2 and counts[0] is not None else None
