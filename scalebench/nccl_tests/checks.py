"""Whether the columns of a row agree: size and count, size / time, and busbw / algbw."""

from dataclasses import dataclass

from scalebench.nccl_tests.operations import OPERATIONS, busbw_factor
from scalebench.nccl_tests.rows import Measured, Printed, Row

_SLACK = 1e-6
"""Relative; some versions computed the bandwidths in single precision."""

Bounds = tuple[float, float]


@dataclass(frozen=True)
class Law:
    """How an operation's columns hang together.

    Attributes:
        op: The operation.
        world_size: None: not known, then less can be checked.
        algbw_is_busbw: Whether the algbw column holds the busbw.
    """

    op: str
    world_size: int | None
    algbw_is_busbw: bool = False

    def disagreement(self, row: Row) -> str | None:
        """Return what is wrong with a row; None: its columns agree within rounding."""
        problem = self._of_count(row)
        for measured in row.measured:
            problem = problem or self._of_bandwidths(row.size_bytes, measured)
        return problem

    def _of_count(self, row: Row) -> str | None:
        shares = OPERATIONS[self.op].shares
        expected = self.world_size if shares else 1
        if expected is None or row.size_bytes == row.count * row.itemsize * expected:
            return None
        times = f" × {expected} ranks" if shares else ""
        return (
            f"the size {row.size_bytes} is not the count {row.count} × {row.itemsize} bytes"
            f"{times}, as it is for {self.op}"
        )

    def _of_bandwidths(self, size_bytes: int, measured: Measured) -> str | None:
        factor = busbw_factor(self.op, self.world_size)
        if factor is None and self.algbw_is_busbw:
            return None
        of_size, of_algbw = (factor or 0.0, 1.0) if self.algbw_is_busbw else (1.0, factor)
        algbw = _bounds(measured.algbw_gb_per_s)
        time = measured.time_us
        if time is not None:
            expected = _scaled(_rate(size_bytes, time), of_size)
            common = _common(algbw, expected)
            if common is None:
                return (
                    f"algbw {measured.algbw_gb_per_s.value:g} GB/s is not size / time = "
                    f"{_text(expected)} GB/s"
                )
            algbw = common
        if of_algbw is None or _common(_bounds(measured.busbw_gb_per_s), _scaled(algbw, of_algbw)):
            return None
        among = "" if self.world_size is None else f" among {self.world_size} ranks"
        return (
            f"busbw {measured.busbw_gb_per_s.value:g} GB/s is not algbw × {of_algbw:.4g} = "
            f"{_text(_scaled(algbw, of_algbw))} GB/s, as it is for {self.op}{among}"
        )


def _bounds(printed: Printed) -> Bounds:
    return printed.low, printed.high


def _rate(size_bytes: int, time_us: Printed) -> Bounds:
    """Return size / time in GB/s; a time that was rounded to 0 has no upper bound."""
    slowest = size_bytes / time_us.high / 1e3
    return slowest, size_bytes / time_us.low / 1e3 if time_us.low > 0 else float("inf")


def _scaled(bounds: Bounds, factor: float) -> Bounds:
    low, high = bounds
    return (low * factor, high * factor) if factor else (0.0, 0.0)


def _common(one: Bounds, other: Bounds) -> Bounds | None:
    low, high = max(one[0], other[0]), min(one[1], other[1])
    return (low, high) if low <= high * (1 + _SLACK) + 1e-12 else None


def _text(bounds: Bounds) -> str:
    low, high = bounds
    return f"{low:.5g} to {high:.5g}" if high > low * (1 + _SLACK) else f"{low:.5g}"
