"""What compressed gradients sent, cost and did: the table, and the sentences under it."""

from collections.abc import Sequence
from dataclasses import dataclass

from scalebench import units
from scalebench.costmodel.what_if import pays
from scalebench.grouping import by_key
from scalebench.records.rows.strategies import CompressionFigures
from scalebench.records.summary import Estimate, Row
from scalebench.report.tables import layout
from scalebench.report.words import wording

NEVER = "never"
BITS = 8


def compressed(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that say something about compression."""
    return [row for row in rows if row.compression is not None]


def figures_of(row: Row) -> CompressionFigures:
    """Return what a row of `compressed` says about compression."""
    assert row.compression is not None, "asked of a row that does not compress"
    return row.compression


def is_bound(row: Row) -> bool:
    """Whether a row communicates nothing: no method can be faster."""
    return row.compression is not None and row.compression.method == "noop"


def link_bit_per_s(rows: Sequence[Row], world_size: int) -> float | None:
    """Return the bandwidth of a rank's link: as set, or what the exact all-reduce moved."""
    here = (row for row in compressed(rows) if row.world_size == world_size)
    exact = next((row for row in here if figures_of(row).method == "none"), None)
    if exact is None:
        return None
    if exact.link_bit_per_s:
        return float(min(exact.link_bit_per_s))
    transfer, wire_bytes = figures_of(exact).transfer_s, figures_of(exact).wire_bytes
    if transfer is None or transfer.value <= 0 or not wire_bytes:
        return None
    return BITS * wire_bytes / transfer.value


def sentences(row: Row | None, rows: Sequence[Row]) -> list[str]:
    """Say what a case sent, what that did, and on which links it pays.

    ``rows`` are those of the suite; the link is read off that of ``none``.
    """
    if row is None or row.compression is None:
        return []
    if is_bound(row):
        return ["Nothing was communicated: this bounds what compression can gain, it trains apart."]
    return [*_sent(row), *_loss(row), *_pays(row, rows)]


def _sent(row: Row) -> list[str]:
    figures = figures_of(row)
    if figures.method == "none" or not figures.gradient_bytes:
        return []
    sent, whole = units.bytes_(figures.payload_bytes), units.bytes_(figures.gradient_bytes)
    said = f"A rank hands over {sent} per step where float32 takes {whole}"
    error, cosine = figures.gradient_error, figures.gradient_cosine
    if error is not None:
        said += f"; the mean gradient is off by {units.percent(error)} of its norm"
        said += f" (cosine {cosine:.3f})" if cosine is not None else ""
    return [f"{said}."]


def _loss(row: Row) -> list[str]:
    losses = figures_of(row).losses
    if losses is None or figures_of(row).method == "none":
        return []
    own, exact = losses.loss_after_steps, losses.loss_of_none_after_steps
    return [f"After {losses.equal_steps} steps the loss is {own:.3f}, with none {exact:.3f}."]


def is_replayed(row: Row) -> bool:
    """Whether the row's break-even comes from a replay, and not from the serial limit."""
    figures = row.compression
    return figures is not None and figures.break_even_replayed_byte_per_s is not None


def break_even_of(row: Row) -> Estimate | None:
    """Return the bandwidth below which a row pays: replayed, or else by the serial limit."""
    if row.compression is None:
        return None
    return row.compression.break_even_replayed_byte_per_s or row.compression.break_even_byte_per_s


def link_of(row: Row, rows: Sequence[Row]) -> float | None:
    """Return the bandwidth of a rank's link that a row's break-even is compared with, bit/s."""
    calibrated = figures_of(row).link_byte_per_s
    return link_bit_per_s(rows, row.world_size) if calibrated is None else BITS * calibrated


def _pays(row: Row, rows: Sequence[Row]) -> list[str]:
    break_even = break_even_of(row)
    if break_even is None:
        return []
    name = wording.plain(row.case, 64)
    if break_even.value <= 0:
        why = "its step is predicted to be the longer one on every link"
        if not is_replayed(row):
            why = "it sends more than float32 would"
        return [f"{name} never pays on {wording.ranks(row)}: {why}."]
    said = f"{name} pays below {_rate(break_even)} here"
    link = link_of(row, rows)
    if link is None:
        return [f"{said}."]
    gives = f"this link gives {units.bit_rate(link)}"
    verdict = {True: "it pays", False: "it does not pay", None: "it is not clear whether it pays"}[
        pays(break_even, link / BITS)
    ]
    return [f"{said}, {gives}: {verdict}."]


def _rate(break_even: Estimate) -> str:
    text = units.bit_rate(BITS * break_even.value)
    ends = [units.bit_rate(BITS * end) for end in break_even.ends or ()]
    return f"{text} ({' to '.join(ends) or 'one launch'})"


@dataclass(frozen=True)
class Payoff:
    """Which methods make the step shorter than the exact all-reduce does, at the largest N.

    Attributes:
        shorter: Cases whose step is shorter, with an interval below 1.
        doubtful: Cases whose step may be shorter or longer.
    """

    exact: Row
    shorter: tuple[str, ...]
    doubtful: tuple[str, ...]


def payoff(rows: Sequence[Row]) -> Payoff | None:
    """Compare the methods with the exact all-reduce.

    Returns:
        None: there is nothing to compare.
    """
    measured = [r for r in compressed(rows) if r.step_s is not None and r.world_size > 1]
    measured = [r for r in measured if not r.oversubscribed] or measured
    if not measured:
        return None
    largest = max(row.world_size for row in measured)
    here = [row for row in measured if row.world_size == largest]
    exact = next((row for row in here if figures_of(row).method == "none"), None)
    methods = [row for row in here if row is not exact and not is_bound(row)]
    if exact is None or not methods:
        return None
    ratios = {row.case: figures_of(row).step_ratio_to_none for row in methods}
    known = {case: r for case, r in ratios.items() if r is not None and r.high is not None}
    shorter = [case for case, r in known.items() if r.high is not None and r.high < 1]
    doubtful = [case for case, r in ratios.items() if r is None or case not in known or r.value < 1]
    return Payoff(exact, tuple(shorter), tuple(doubtful))


def verdict(rows: Sequence[Row]) -> str | None:
    """Say whether any method makes the step shorter than the exact all-reduce does.

    Returns:
        None: there is nothing to compare.
    """
    found = payoff(rows)
    if found is None or found.exact.step_s is None:
        return None
    where = f"on {wording.ranks(found.exact)}"
    takes = wording.seconds(found.exact.step_s)
    if found.shorter:
        verb = "takes a shorter step" if len(found.shorter) == 1 else "take shorter steps"
        return f"{_names(found.shorter)} {verb} than the exact all-reduce ({takes}) {where}."
    if found.doubtful:
        return (
            f"It is not clear whether compression pays {where}: the step of"
            f" {_names(found.doubtful)} may be shorter or longer than that of the exact all-reduce"
            f" ({takes})."
        )
    return (
        f"Compression does not pay {where}: no method's step is shorter than that of the exact"
        f" all-reduce ({takes})."
    )


MOST_NAMED = 2
"""Methods that a headline names; of more it says how many."""


def headline(rows: Sequence[Row]) -> str | None:
    """Say in a few words whether compression pays; None: there is nothing to compare."""
    found = payoff(rows)
    if found is None:
        return None
    if not found.shorter:
        unclear = "Whether compression pays is not clear."
        return unclear if found.doubtful else "No compression pays here."
    several = len(found.shorter) > MOST_NAMED
    names = f"{len(found.shorter)} methods" if several else _names(found.shorter)
    return f"{names} {'beats' if len(found.shorter) == 1 else 'beat'} no compression here."


def _names(cases: Sequence[str]) -> str:
    return wording.joined([wording.plain(case, 64) for case in cases])


def _pays_below(row: Row) -> str:
    break_even = break_even_of(row)
    if break_even is None:
        return wording.DASH
    at_most = "" if is_replayed(row) else "≤ "
    return NEVER if break_even.value <= 0 else at_most + units.bit_rate(BITS * break_even.value)


def _loss_after(row: Row) -> str:
    losses = figures_of(row).losses
    return f"{losses.loss_after_steps:.3f}" if losses else wording.DASH


COLUMNS: tuple[layout.Column[Row], ...] = (
    layout.SHRINKING_CASE,
    layout.RANKS,
    layout.Column("sends", lambda r: units.bytes_(figures_of(r).payload_bytes)),
    layout.value("of float32", lambda r: figures_of(r).payload_ratio, units.percent),
    layout.Column("wire", lambda r: units.bytes_(figures_of(r).wire_bytes)),
    layout.value("encode", lambda r: figures_of(r).encode_s, wording.seconds),
    layout.value("comm", lambda r: figures_of(r).communicate_s, wording.seconds),
    layout.value("decode", lambda r: figures_of(r).decode_s, wording.seconds),
    layout.value(
        "error", lambda r: figures_of(r).gradient_error, lambda e: units.significant(e, digits=2)
    ),
    layout.Column("loss", _loss_after),
    layout.Column("pays below", _pays_below),
)
NOTE = (
    "per rank and step; encode and decode of clean steps, communication of traced ones; error of "
    "the mean gradient (relative L2)"
)


def _footnotes(of_suite: Sequence[Row]) -> list[str]:
    rows = compressed(of_suite)
    steps = {
        row.world_size: losses.equal_steps for row in rows if (losses := figures_of(row).losses)
    }
    counts = wording.joined([f"{count} steps at N={size}" for size, count in steps.items()])
    after = f"loss: after {counts}, the same for every case" if steps else ""
    serial = any(break_even_of(row) and not is_replayed(row) for row in rows)
    return [
        *([after] if after else []),
        "pays below: on slower links than this the step is predicted to be the shorter one",
        *(["≤: if nothing overlapped (serial limit); no replay tells it"] if serial else []),
    ]


def _below(rows: Sequence[Row]) -> list[tuple[str, str]]:
    said = verdict(rows)
    paid = [(text, "") for row in _largest_of_each(compressed(rows)) for text in _pays(row, rows)]
    return [*paid, *([(said, "bold")] if said else [])]


def _largest_of_each(rows: Sequence[Row]) -> list[Row]:
    by_case = by_key((row.case, row) for row in rows)
    chosen = []
    for of_case in by_case.values():
        fitting = [row for row in of_case if not row.oversubscribed] or of_case
        chosen.append(max(fitting, key=lambda row: row.world_size))
    return chosen


COMPRESSION = layout.Table(
    "what compression sends and costs",
    COLUMNS,
    compressed,
    lead=(NOTE,),
    about=NOTE,
    notes=_footnotes,
    below=_below,
    narrowing=(
        *layout.without("wire", "comm", "of float32", "error", "decode", "encode", "loss", "sends"),
        *layout.FOLDED,
    ),
)
tables = layout.pages(COMPRESSION)
