"""Numbers as people read them. SI inside the program; this is the edge where units are put on.

Nothing here rounds a stored value: these functions make text.
"""

import math

_TIME_STEPS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
PER_SECOND = {"s": 1.0, "ms": 1e3, "µs": 1e6, "ns": 1e9}
"""How many of a unit of time make a second."""

BYTE_STEPS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_RATE_STEPS = ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s"))
_FLOP_STEPS = ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s"))
_COUNT_STEPS = ((1e9, "B"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def significant(value: float, uncertainty: float | None = None, digits: int = 3) -> str:
    """Write ``value`` with the digits that its uncertainty supports.

    Args:
        value: The number.
        uncertainty: Half the width of its interval, same unit; the last digit written is the
            place of the uncertainty's second digit, and at least the value's second. None:
            ``digits`` significant digits.
        digits: Significant digits when there is no uncertainty, and the most ever written + 1.
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    magnitude = math.floor(math.log10(abs(value)))
    places = digits - 1 - magnitude
    if uncertainty and math.isfinite(uncertainty):
        supported = 1 - math.floor(math.log10(abs(uncertainty)))
        places = min(supported, places + 1)
        places = max(places, 1 - magnitude)
    rounded = round(value, places)
    if rounded and math.floor(math.log10(abs(rounded))) > magnitude:  # 9.996 is 10.0, not 10.00
        return significant(rounded, uncertainty, digits)
    return f"{rounded:.{max(places, 0)}f}"


def _scaled(value: float, uncertainty: float | None, steps: tuple[tuple[float, str], ...]) -> str:
    # What rounds to 1000 of a unit is 1 of the next.
    scale, unit = next((s for s in steps if abs(value) >= 0.9995 * s[0]), steps[-1])
    text = significant(value / scale, uncertainty / scale if uncertainty else None)
    above = min((larger for larger, _ in steps if larger > scale), default=math.inf)
    if abs(float(text)) * scale >= above:  # 999.9 MB are written 1000 MB: 1.00 GB
        return _scaled(math.copysign(above, value), uncertainty, steps)
    return f"{text} {unit}".rstrip()


def seconds(value: float, uncertainty: float | None = None) -> str:
    """Write a duration given in seconds, for example ``"18.4 ms"``."""
    return _scaled(value, uncertainty, _TIME_STEPS)


def seconds_or_zero(value: float) -> str:
    """Write a duration given in seconds, one that is nothing as ``"0"``."""
    return seconds(value) if value else "0"


def bytes_(value: float) -> str:
    """Write a size given in bytes with decimal prefixes, for example ``"1.05 MB"``."""
    return _scaled(value, None, BYTE_STEPS)


def bytes_or_zero(value: float) -> str:
    """Write a size given in bytes, one that is nothing as ``"0"``."""
    return bytes_(value) if value else "0"


def bit_rate(value: float, uncertainty: float | None = None) -> str:
    """Write a rate given in bits per second, for example ``"47.8 Mbit/s"``."""
    return _scaled(value, uncertainty, _RATE_STEPS)


def flop_rate(value: float) -> str:
    """Write a rate given in floating-point operations per second, for example ``"783 TFLOP/s"``."""
    return _scaled(value, None, _FLOP_STEPS)


def count(value: float, uncertainty: float | None = None) -> str:
    """Write a plain count, for example ``"21"``, ``"421k"`` or ``"1.31B"`` parameters."""
    if isinstance(value, int) and abs(value) < 1000:
        return str(value)
    text = _scaled(value, uncertainty, _COUNT_STEPS)
    return text.replace(" ", "")


def percent(value: float, uncertainty: float | None = None) -> str:
    """Write a ratio as percent, for example ``"84.9 %"``; percent exists only on screen."""
    return f"{significant(value * 100, uncertainty * 100 if uncertainty else None)} %"


def rough_percent(ratio: float) -> str:
    """Write a ratio as percent with two digits, or all before the point: ``"4.1 %"``, ``"540 %"``.

    ``"over 10000 %"`` beyond that: the number says no more than that nothing is known.
    """
    if ratio > 100:
        return "over 10000 %"
    return f"{100 * ratio:.0f} %" if ratio >= 0.1 else f"{100 * ratio:.2g} %"


def rough_time(seconds: float) -> str:
    """Write how long something will take: whole seconds, and minutes from 100 seconds on."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
