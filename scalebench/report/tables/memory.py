"""Memory of a suite's rows: what the fullest rank held at its peak, and what was predicted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scalebench import units
from scalebench.records.summary import Row
from scalebench.report.tables.layout import CASE, PLACE, RANKS, Column, value
from scalebench.report.tables.listing import Table, pages
from scalebench.report.tables.memory_axes import MEMORY_AXES
from scalebench.report.words import wording

NOTHING = wording.DASH


@dataclass(frozen=True)
class Category:
    """What memory is held for.

    Attributes:
        key: Its name in ``memory``, without the unit.
        meaning: One line for a key.
    """

    key: str
    name: str
    meaning: str


CATEGORIES = (
    Category("parameters", "parameters", "The model's parameters and buffers."),
    Category("gradients", "gradients", "Gradients that are alive at the peak."),
    Category("optimizer", "optimizer", "The optimizer's state."),
    Category(
        "communication",
        "communication",
        "What the strategy keeps between steps: buckets that gradients are copied to.",
    ),
    Category("data", "data", "Samples that the workload holds on the device."),
    Category(
        "activations",
        "activations",
        "All the rest: activations, and what operators and collectives take for the moment.",
    ),
)
"""In the order of the bars; at one moment, so that they sum to the peak."""

OTHER_KINDS = {
    "rss_bytes": (
        "resident",
        "Resident: the whole process, the interpreter and its libraries included.",
    ),
    "reserved_bytes": ("reserved", "Reserved: what the caching allocator held."),
    "device_bytes": ("device used", "Device used: by everyone on the device."),
}
"""Memory that is counted otherwise: of the process, of the allocator, of the device."""

FIELDS = {"peak_memory_bytes": "peak", "predicted_memory_bytes": "prediction"}


@dataclass(frozen=True)
class Peak:
    """The peak of a row's fullest rank, bytes.

    Attributes:
        parts: By `CATEGORIES`; empty: not told apart.
        total: Their sum, or the row's peak.
        predicted: None: could not be predicted.
    """

    row: Row
    parts: tuple[int, ...]
    total: int
    predicted: int | None

    @property
    def error(self) -> float | None:
        """(predicted − measured) / measured."""
        return None if self.predicted is None else self.predicted / self.total - 1

    @property
    def tests_prediction(self) -> bool:
        """Whether the prediction could have been wrong: the baseline's has its own activations."""
        return self.predicted is not None and not wording.is_baseline(self.row)


def peak(row: Row) -> Peak | None:
    """Return the peak of a measured row; None: not counted."""
    if row.status != "ok":
        return None
    known = [row.memory.get(f"{category.key}_bytes") for category in CATEGORIES]
    parts = tuple(part for part in known if part is not None)
    if len(parts) < len(CATEGORIES) or min(parts) < 0:
        parts = ()
    total = sum(parts) or row.peak_memory_bytes or 0
    return Peak(row, parts, total, row.predicted_memory_bytes) if total > 0 else None


def peaks(rows: Sequence[Row]) -> list[Peak]:
    """Return the peaks that were counted."""
    return [found for row in rows if (found := peak(row))]


def error(found: Peak) -> str:
    """Write how far a prediction is off: ``"−1.2 %"``."""
    if found.error is None:
        return NOTHING
    text = wording.signed(100 * found.error)
    return f"{'+' if found.error > 0 and float(text) else ''}{text} %"


def sentence(rows: Sequence[Row]) -> str | None:
    """Say how well the peaks were predicted, or else what the largest is made of."""
    counted = peaks(rows)
    if not counted:
        return None
    tested = [found for found in counted if found.tests_prediction]
    if not tested:
        fullest = max(counted, key=lambda found: found.total)
        return (
            f"The fullest rank holds {units.bytes_(fullest.total)} at its peak, that of"
            f" {_where(fullest)}; no peak but the baseline's was predicted."
        )
    furthest = max(tested, key=lambda found: abs(found.error or 0.0))
    off = furthest.error or 0.0
    within = f"within {_rounded_up(abs(off)):.1f} %"
    way = f", too {'low' if off < 0 else 'high'}" if off else ""
    if len(tested) == 1:
        return f"The predicted peak of {_where(furthest)} is {within} of the measured one{way}."
    return (
        f"Predicted peaks are {within} of the measured ones; the furthest is that of"
        f" {_where(furthest)}{way}."
    )


def _rounded_up(ratio: float) -> float:
    return math.ceil(ratio * 1000 - 1e-6) / 10


def _where(found: Peak) -> str:
    return f"{wording.plain(found.row.case, 64)} on {wording.ranks(found.row)}"


def _columns(counted: Sequence[Peak]) -> list[Column[Peak]]:
    apart = any(found.parts for found in counted)
    return [
        CASE.of(_row),
        RANKS.of(_row),
        *(_part_column(i) for i in range(len(CATEGORIES) if apart else 0)),
        Column("peak", lambda found: units.bytes_(found.total)),
        value("predicted", lambda found: found.predicted, units.bytes_or_zero),
        Column("error", error),
        *(_other_column(kind, name) for kind, (name, _) in _others(counted).items()),
    ]


def _others(counted: Sequence[Peak]) -> dict[str, tuple[str, str]]:
    return {
        kind: told
        for kind, told in OTHER_KINDS.items()
        if any(found.row.memory.get(kind) is not None for found in counted)
    }


def _row(found: Peak) -> Row:
    return found.row


def _part_column(place: int) -> Column[Peak]:
    def read(found: Peak) -> int | None:
        return found.parts[place] if found.parts else None

    return value(CATEGORIES[place].name, read, units.bytes_or_zero)


def _other_column(kind: str, name: str) -> Column[Peak]:
    return value(name, lambda found: found.row.memory.get(kind), units.bytes_or_zero)


def _notes(rows: Sequence[Row]) -> list[str]:
    counted = peaks(rows)
    sums = "The categories are of one moment and sum to the peak of live tensors."
    return [
        *([sums] if any(found.parts for found in counted) else []),
        "Predicted by the strategy's law from the plain baseline's activations, so the baseline's"
        " own prediction is no test.",
        *(meaning for _, meaning in _others(counted).values()),
    ]


PEAKS = Table("Peak of the fullest rank, and its prediction", _columns, peaks, notes=_notes)
REASONS: Table[tuple[Row, str]] = Table(
    "What is not known, and why",
    (
        *PLACE,
        Column("what", lambda of: FIELDS[of[1]], numeric=False),
        Column("reason", lambda of: wording.plain(of[0].unavailable[of[1]], 300), numeric=False),
    ),
    lambda rows: [
        (row, field)
        for row in rows
        if row.status == "ok"
        for field in FIELDS
        if getattr(row, field) is None and field in row.unavailable
    ],
)
tables = pages(PEAKS, MEMORY_AXES, REASONS)
