"""Communication of a suite's rows as tables: operations, exposure, arrivals, volume, cost.

Every number is per step of the rank that waits most, as the traced steps have it.

Timed collectives are put into words, too: what a message costs, and how much links carry.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scalebench import units
from scalebench.records.measured.rank import NcclWires, Pair, Transport
from scalebench.records.rows.budget import WAIT, RankTimes
from scalebench.records.rows.steps import AxisFigures, OperationFigures, Straggler
from scalebench.records.rows.strategies import ExposedEstimates
from scalebench.records.summary import Estimate, Row, TimedCollectives
from scalebench.report.tables.budget import AXIS_BUDGET
from scalebench.report.tables.layout import (
    CASE,
    PLACE,
    RANKS,
    Column,
    PlainTable,
    Screen,
    Table,
    ending,
    pages,
    placed,
    value,
)
from scalebench.report.words import notes, wording
from scalebench.report.words.causes import arrivals, disagreements
from scalebench.spec.base import BACKEND, EITHER_PLACE


def sentence(rows: Sequence[Row]) -> str | None:
    """Say how much of the communication is hidden behind computation, in the largest size."""
    told = [row for row in rows if row.overlap_ratio and row.world_size > 1]
    if not told:
        return None
    largest = max(row.world_size for row in told)
    at_largest = [row for row in told if row.world_size == largest]
    most = max(at_largest, key=lambda row: row.overlap_ratio.value if row.overlap_ratio else 0.0)
    assert most.overlap_ratio is not None
    hidden = most.overlap_ratio
    where = f"on {wording.ranks(most)}"
    if hidden.value < 0.005:
        return f"No communication is hidden behind computation {where}."
    share = units.percent(hidden.value, hidden.half_width)
    rivals = ", the most of all cases" if len(at_largest) > 1 else ""
    return (
        f"{wording.plain(most.case, 64)} hides {share} of its communication behind computation"
        f" {where}{rivals}."
    )


KIND: Column[OperationFigures] = Column(
    "kind", lambda one: wording.plain(one.kind, 40), numeric=False
)
BUCKET: Column[OperationFigures] = Column("bucket", lambda one: str(one.ordinal))
OPERATION: tuple[Column[OperationFigures], ...] = (
    Column("asked for in", lambda one: wording.plain(one.phase, 40), numeric=False),
    Column("count", lambda one: f"{one.count:.4g}"),
    value("bytes", lambda one: one.num_bytes, units.bytes_),
    Column("total", lambda one: units.seconds_or_zero(one.total_s)),
    Column("exposed", lambda one: units.seconds_or_zero(one.exposed_s)),
    Column("hidden", lambda one: units.seconds_or_zero(one.hidden_s)),
)


def _operations(rows: Sequence[Row], by_bucket: bool) -> list[tuple[Row, OperationFigures]]:
    return [
        (row, one)
        for row in rows
        for one in row.communication or ()
        if (one.ordinal is not None) == by_bucket
    ]


Axis = tuple[Row, AxisFigures]
AXIS: tuple[Column[Axis], ...] = placed(
    Column("axis", lambda one: wording.plain(one.axis, 40), numeric=False),
    Column("ranks", lambda one: str(one.num_ranks)),
    Column("count", lambda one: f"{one.count:.4g}"),
    value("bytes", lambda one: one.num_bytes, units.bytes_),
    value("wire", lambda one: one.wire_bytes, units.bytes_),
    value("predicted", lambda one: one.predicted_wire_bytes, units.bytes_),
    Column("total", lambda one: units.seconds_or_zero(one.total_s)),
    Column("exposed", lambda one: units.seconds_or_zero(one.exposed_s)),
    value("waiting", lambda one: one.wait_s, units.seconds_or_zero),
)


AXES = Table(
    "Communication by axis",
    AXIS,
    lambda rows: [(row, one) for row in rows for one in row.axes or ()],
    remark="per step, of the rank that waits most",
    about=(
        "Per traced step, by the dimension of the mesh whose group carried it. Wire: bytes that a "
        "rank sends by the ring's law; predicted: the same from the strategy's own law. Wait: the "
        "part of the exposed time in which the rank waited for others."
    ),
    below=ending(notes.axis_sentences),
)


OfRank = tuple[Row, RankTimes]
_OF_GPUS: tuple[Column[OfRank], ...] = (
    value("during copies", lambda of: of[1].comm_beside_copies_s, units.seconds_or_zero),
    value("copies alone", lambda of: of[1].copies_alone_s, units.seconds_or_zero),
)

RANK_STEP: tuple[Column[OfRank], ...] = (
    *PLACE,
    Column("rank", lambda of: f"rank {of[1].rank}", numeric=False),
    Column("step", lambda of: units.seconds_or_zero(of[1].step_s)),
    Column("compute", lambda of: units.seconds_or_zero(of[1].compute_s)),
    Column("communication", lambda of: units.seconds_or_zero(of[1].comm_s)),
    Column("exposed", lambda of: units.seconds_or_zero(of[1].exposed_comm_s)),
    value("waiting", lambda of: _wait(*of), units.seconds_or_zero),
    *_OF_GPUS,
    Column("data", lambda of: units.seconds_or_zero(of[1].data_stall_s)),
    Column("idle", lambda of: units.seconds_or_zero(of[1].other_idle_s)),
)


def _wait(row: Row, rank: RankTimes) -> float | None:
    """Return a rank's waiting; None where the row's waits could not be told from transfer."""
    merged = row.budget is not None and not row.budget.knows(WAIT)
    return None if merged or "wait_s" in row.unavailable else rank.wait_s


def _rank_columns(lines: Sequence[OfRank]) -> list[Column[OfRank]]:
    on_gpu = any(row.device == "cuda" for row, _ in lines)
    return [column for column in RANK_STEP if on_gpu or column not in _OF_GPUS]


def _about_ranks(rows: Sequence[Row]) -> str:
    copies = (
        " During copies: the part of exposed communication during which GPU memory was copied."
        if any(row.device == "cuda" for row in rows)
        else ""
    )
    return (
        "Traced steps as they are, tracing's own cost included; means over the launches. Exposed"
        f" communication is transfer, waiting and the bubble of a pipeline.{copies} The budget is"
        " that of the rank that waits most, or the mean of all ranks of a pipeline."
    )


def _with_interval(estimate: Estimate) -> str:
    """Write a duration with its interval in the same unit: ``"2.2 ms (−3.1 to 7.5)"``."""
    text = units.seconds(estimate.value, estimate.half_width or None)
    if not estimate.half_width:
        return text.replace("-", wording.MINUS)
    number, _, unit = text.rpartition(" ")
    scale = units.PER_SECOND[unit]
    places = wording.decimals(number)
    ends = [wording.signed(end * scale, places) for end in estimate.ends or ()]
    return f"{number.replace('-', wording.MINUS)} {unit} ({' to '.join(ends)})"


EXPOSED: tuple[Column[tuple[Row, ExposedEstimates]], ...] = (
    *PLACE,
    value("trace", lambda of: of[1].trace, _with_interval),
    value("difference", lambda of: of[1].differential, _with_interval),
    value("DDP's logger", lambda of: of[1].ddp_logger, _with_interval),
    Column("verdict", lambda of: _verdict(*of), numeric=False),
)


def _estimates(rows: Sequence[Row]) -> list[tuple[Row, ExposedEstimates]]:
    found = [(row, row.exposed_comm_estimates or ExposedEstimates()) for row in rows]
    return [(row, of) for row, of in found if of.trace or of.differential or of.ddp_logger]


def _verdict(row: Row, found: ExposedEstimates) -> str:
    if found.disagree is None:
        return "cannot be compared"
    if disagreements(row):
        return "disagree"
    return "differ by less than 1 % of the step" if found.disagree else "agree"


ARRIVALS: tuple[Column[tuple[Row, Straggler]], ...] = placed(
    Column("rank", lambda one: f"rank {one.rank}", numeric=False),
    Column("last in", lambda one: f"{100 * one.share:.0f} %"),
    Column("by (median)", lambda one: units.seconds_or_zero(one.median_late_s)),
    Column("in a row", lambda one: str(one.longest_run)),
)


def _ratio(estimate: Estimate) -> str:
    """Write a ratio in percent; one that may be zero is marked."""
    text = wording.signed(100 * estimate.value)
    doubt = "" if estimate.excludes_zero or estimate.low == estimate.high else "?"
    return f"{text} %{doubt}"


COST: tuple[Column[Row], ...] = (
    CASE,
    RANKS,
    value("payload", lambda row: row.payload_bytes, units.bytes_),
    value("wire", lambda row: row.wire_bytes, units.bytes_),
    value("predicted", lambda row: row.predicted_wire_bytes, units.bytes_),
    value("hidden", lambda row: row.overlap_ratio, _ratio),
    value("comm/compute", lambda row: row.comm_compute_ratio, _ratio),
    value("tracing", lambda row: row.trace_overhead, _ratio),
    value("probes", lambda row: row.probe_effect, _ratio),
)


def tables(rows: Sequence[Row]) -> tuple[PlainTable, ...]:
    """Return the tables of one suite about what was sent, those that have a line."""
    return _SENT([row for row in rows if row.communication])


def rank_tables(rows: Sequence[Row]) -> tuple[PlainTable, ...]:
    """Return the tables of one suite about its ranks, those that have a line."""
    return _RANKS([row for row in rows if row.communication])


_SENT = pages(
    Table(
        "Operations",
        placed(KIND, *OPERATION),
        lambda rows: _operations(rows, by_bucket=False),
        about=(
            "Per traced step, tracing's own cost included. Exposed: while the rank computed"
            " nothing; hidden: the rest."
        ),
    ),
    AXES,
    AXIS_BUDGET,
    Table(
        "Every bucket",
        placed(KIND, BUCKET, *OPERATION),
        lambda rows: _operations(rows, by_bucket=True),
        folded=True,
    ),
    Table(
        "Exposed communication, three ways",
        EXPOSED,
        _estimates,
        about=(
            "Per step. Trace: intervals in traced steps; difference: a step with synchronisation"
            " minus one without; DDP's logger: its own account. In brackets: 95 % intervals."
        ),
    ),
    Table(
        "Volume, overlap, and what looking cost",
        COST,
        lambda rows: rows,
        about=(
            "Payload: bytes that a rank hands over per step; wire: bytes that it sends by the "
            "ring's law; predicted: the same from the strategy's own law. Tracing: how much longer "
            "traced steps took than clean ones; probes: how much longer clean ones, the "
            "headline's, took than bare ones. ?: uncertain, may be zero."
        ),
    ),
)
_RANKS = pages(
    Table(
        "Who arrives last",
        ARRIVALS,
        lambda rows: [(row, late) for row in rows for late in arrivals(row)[:4]],
        about=(
            "Share of the matched operations to which a rank came last; how long after the first; "
            "most such operations in a row. At most four ranks of each row. In a pipeline one "
            "stage waits for another by the schedule."
        ),
    ),
    Table(
        "Every rank",
        _rank_columns,
        lambda rows: [(row, rank) for row in rows if row.budget for rank in row.budget.ranks or ()],
        about=_about_ranks,
        folded=True,
    ),
)


MOST_PAIRS = 8


def _pairs(pairs: Sequence[Pair]) -> str:
    """Write the first pairs: ``0→1, 1→0``, and how many there are."""
    named = ", ".join(f"{a}→{b}" for a, b in pairs[:MOST_PAIRS])
    return f"{len(pairs)}: {named}, …" if len(pairs) > MOST_PAIRS else named


def _names(names: Sequence[str]) -> str:
    return wording.plain(", ".join(names), 200) or wording.DASH


OF_TRANSPORT: tuple[Column[Transport], ...] = (
    Column("transport", lambda of: wording.plain(of.name, 40), numeric=False),
    Column("pairs", lambda of: _pairs(of.pairs), numeric=False, wraps=True),
    Column("adapters", lambda of: _names(of.adapters), numeric=False, wraps=True),
    value("GPUDirect", lambda of: of.gdr, lambda gdr: "on" if gdr else "off"),
)


WIRES = Table(
    "Wires",
    placed(*OF_TRANSPORT),
    lambda rows: [(row, one) for row in rows if row.wires for one in row.wires.transports],
    about=(
        "From NCCL's own log of the inspection launch, whose times do not count. P2P alone: "
        "nothing says whether it is NVLink or PCIe. GPUDirect: the adapter accesses GPU memory "
        "itself."
    ),
)
wires_tables = pages(WIRES)


def wire_findings(wires: NcclWires | None) -> list[str]:
    """Return a line for each wire that is slower than what the machine has."""
    return [
        f"{wording.plain(one.text, 300)}. Set: {wording.plain(one.remedy, 300)}"
        for one in (wires.findings if wires is not None else ())
    ]


def wire_findings_of(rows: Sequence[Row]) -> list[str]:
    """Return the findings of all rows, each once."""
    return list(dict.fromkeys(said for row in rows for said in wire_findings(row.wires)))


def wires_sentence(rows: Sequence[Row]) -> str:
    """Return the findings of all rows in sentences; empty: there are none."""
    return " ".join(f"{said}." for said in wire_findings_of(rows))


def render_wires(wires: NcclWires, screen: Screen) -> str:
    """Return what ``scalebench doctor`` prints of a log. What it does not say is called unknown."""
    unknown = "the log does not say"
    nodes = [f"{one.host} ({one.num_ranks} rank{'s' * (one.num_ranks > 1)})" for one in wires.nodes]
    sizes = ", ".join(map(str, wires.communicator_sizes))
    facts = {
        "NCCL": wires.version,
        "nodes": ", ".join(nodes),
        "ranks": f"{sizes}, of each communicator; they are numbered in each"
        if len(wires.communicator_sizes) > 1
        else sizes,
        "network": wires.network,
        "channels": wires.num_channels,
        "algorithms": ", ".join(wires.algorithms),
    }
    for name, told in facts.items():
        screen.line(f"{name:<12}{wording.plain(told or unknown, 300)}")
    screen.line()
    if wires.transports:
        screen.table(OF_TRANSPORT, wires.transports)
    else:
        screen.line("The log has no channels: which wires is not known.")
    screen.lines(wire_findings(wires) or (["No problems found."] if wires.transports else []))
    return screen.text()


@dataclass(frozen=True)
class LinkFigures:
    """An operation of the backend at the largest N that was timed.

    Attributes:
        alpha_s: Latency of a message, of the smallest sizes.
        bandwidth_byte_per_s: Of a link, of the largest sizes; None: they do not show it.
    """

    op: str
    world_size: int
    law: str
    alpha_s: float
    bandwidth_byte_per_s: float | None


def operations(found: TimedCollectives) -> list[LinkFigures]:
    """Return the figures of each operation at its largest N, in the order of the fits."""
    named = dict.fromkeys(str(fit["op"]) for fit in found.fits if _usual(fit))
    return [
        _figures([fit for fit in found.fits if _usual(fit) and fit["op"] == op]) for op in named
    ]


def _usual(fit: dict[str, Any]) -> bool:
    return fit["algorithm"] == BACKEND and not (fit["in_place"] and fit["op"] in EITHER_PLACE)


def _figures(fits: Sequence[dict[str, Any]]) -> LinkFigures:
    largest = max(fit["world_size"] for fit in fits)
    regimes = [fit for fit in fits if fit["world_size"] == largest]
    regimes = [fit for fit in regimes if fit["dtype"] == regimes[0]["dtype"]]
    regimes.sort(key=lambda fit: int(fit["min_bytes"]))
    first, last = regimes[0], regimes[-1]
    return LinkFigures(
        op=first["op"],
        world_size=largest,
        law=first["law"],
        alpha_s=first["alpha_s"],
        bandwidth_byte_per_s=last["bandwidth_byte_per_s"],
    )


def headline(found: TimedCollectives) -> str:
    """Say what an all-reduce's messages cost, and whether all results were right."""
    if found.failure is not None:
        return f"Failed: {wording.plain(found.failure, 300)}."
    right = f"{found.num_points} points, every result verified: {found.num_wrong} wrong elements."
    known = operations(found)
    if not known:
        return right
    one = next((figures for figures in known if figures.op == "all_reduce"), known[0])
    carried = (
        f", and a link carries {units.bytes_(one.bandwidth_byte_per_s)}/s"
        if one.bandwidth_byte_per_s
        else ""
    )
    name = wording.plain(one.op, 40)
    return (
        f"On {one.world_size} ranks a message of {name} costs {units.seconds(one.alpha_s)}"
        f"{carried}. {right}"
    )
