"""Memory of a suite's rows: peak by category and by axis; the largest batch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scalebench import units
from scalebench.records.rows.strategies import MemoryByAxis
from scalebench.records.run import LargestBatch
from scalebench.records.summary import Row
from scalebench.report.tables.layout import (
    CASE,
    PLACE,
    RANKS,
    Column,
    PlainTable,
    Table,
    pages,
    value,
    value_of_each,
)
from scalebench.report.words import wording

NOTHING = wording.DASH


CATEGORIES = {
    "parameters": "The model's parameters and buffers.",
    "gradients": "Gradients that are alive at the peak.",
    "optimizer": "The optimizer's state.",
    "communication": "What the strategy keeps between steps: buckets that gradients are copied to.",
    "data": "Samples that the workload holds on the device.",
    "activations": "All the rest: activations, and what operators and collectives take for the"
    " moment.",
}
"""What memory is held for → one line about it; in the order of the bars. All are of one moment, so
that they sum to the peak."""

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
        parts: Category → its part; empty: not separated.
        total: Their sum, or the row's peak.
        predicted: None: could not be predicted.
    """

    row: Row
    parts: dict[str, int]
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
    known = {name: row.memory.get(f"{name}_bytes") for name in CATEGORIES}
    parts = {name: part for name, part in known.items() if part is not None and part >= 0}
    if len(parts) < len(CATEGORIES):
        parts = {}
    total = sum(parts.values()) or row.peak_memory_bytes or 0
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
        CASE.of(lambda found: found.row),
        RANKS.of(lambda found: found.row),
        *value_of_each(
            {name: name for name in (CATEGORIES if apart else ())},
            lambda found, name: found.parts.get(name),
            units.bytes_or_zero,
        ),
        Column("peak", lambda found: units.bytes_(found.total)),
        value("predicted", lambda found: found.predicted, units.bytes_or_zero),
        Column("error", error),
        *value_of_each(
            {kind: name for kind, (name, _) in _others(counted).items()},
            lambda found, kind: found.row.memory.get(kind),
            units.bytes_or_zero,
        ),
    ]


def _others(counted: Sequence[Peak]) -> dict[str, tuple[str, str]]:
    return {
        kind: told
        for kind, told in OTHER_KINDS.items()
        if any(found.row.memory.get(kind) is not None for found in counted)
    }


def _notes(rows: Sequence[Row]) -> list[str]:
    counted = peaks(rows)
    sums = "The categories are of one moment and sum to the peak of live tensors."
    return [
        *([sums] if any(found.parts for found in counted) else []),
        "Predicted by the strategy's law from the plain baseline's activations, so the baseline's"
        " own prediction is no test.",
        *(meaning for _, meaning in _others(counted).values()),
    ]


Divided = tuple[Row, MemoryByAxis]


def divided(rows: Sequence[Row]) -> list[Divided]:
    """Return the rows on a mesh whose memory is told by axis."""
    return [(row, row.memory_by_axis) for row in rows if row.memory_by_axis is not None]


def share_saved(found: MemoryByAxis) -> float:
    """Return what all axes together take off, as a part of one process."""
    return 1 - found.rank_bytes / found.one_process_bytes if found.one_process_bytes else 0.0


def left_error(of: Divided) -> float | None:
    """Return (left − measured) / measured; None: not measured."""
    row, found = of
    return found.rank_bytes / row.peak_memory_bytes - 1 if row.peak_memory_bytes else None


def _savings(found: MemoryByAxis) -> str:
    told = (
        f"{wording.plain(one.axis, 40)} {wording.MINUS}{units.bytes_(one.total_bytes)}"
        if one.total_bytes
        else f"{wording.plain(one.axis, 40)} 0"
        for one in found.savings
    )
    return ", ".join(told)


AXIS_COLUMNS: tuple[Column[Divided], ...] = (
    *PLACE,
    Column("one process", lambda of: units.bytes_(of[1].one_process_bytes)),
    Column("axes take off", lambda of: _savings(of[1]), numeric=False),
    Column("left", lambda of: units.bytes_(of[1].rank_bytes)),
    value("predicted", lambda of: of[0].predicted_memory_bytes, units.bytes_),
    value("measured", lambda of: of[0].peak_memory_bytes, units.bytes_),
    value("left, error", left_error, lambda ratio: f"{wording.signed(100 * ratio)} %"),
)


MEMORY_AXES = Table(
    "Memory by axis",
    AXIS_COLUMNS,
    divided,
    about=(
        "Of the fullest rank. One process: its predicted peak on the whole batch. Each axis takes "
        "something off what those before it leave, by its law. Left: by these laws alone, without "
        "what is gathered for the moment and buffers of messages; predicted: the peak of the "
        "shard, measured alone."
    ),
)


def axes_sentence(rows: Sequence[Row]) -> str | None:
    """Say which axis takes most off, in the row where all together take most off."""
    found = divided(rows)
    if not found:
        return None
    row, by_axis = max(found, key=lambda of: share_saved(of[1]))
    most = max(by_axis.savings, key=lambda one: one.total_bytes, default=None)
    if most is None or most.total_bytes <= 0:
        return None
    return (
        f"{wording.plain(row.case, 64)} on {wording.ranks(row)} leaves a rank "
        f"{units.percent(1 - share_saved(by_axis))} of what one process would hold; axis "
        f"{wording.plain(most.axis, 40)} takes off most, {units.bytes_(most.total_bytes)}."
    )


def max_batch_table(rows: Sequence[Row], found: Sequence[LargestBatch]) -> PlainTable | None:
    """Return the largest batches of a suite's cases; None: the run did not look for them."""
    by_row = {(batch.suite, batch.case, batch.world_size): batch for batch in found}
    places = [(row, by_row.get((row.suite, row.case, row.world_size))) for row in rows]
    lines = [(row, batch) for row, batch in places if batch is not None]
    if not lines:
        return None
    return PlainTable.of(
        "Largest batch",
        "The largest batch that fits a rank, found by launches that only try.",
        BATCH_COLUMNS,
        lines,
    )


BATCH_COLUMNS: tuple[Column[tuple[Row, LargestBatch]], ...] = (
    *PLACE,
    Column("fits per rank", lambda of: str(of[1].fits)),
    Column("does not fit", lambda of: str(of[1].too_large)),
    Column("all ranks", lambda of: str(of[1].fits * of[0].world_size)),
    value("samples/s", lambda of: of[0].throughput, lambda found: f"{found.value:.4g}"),
)


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
