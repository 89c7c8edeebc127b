"""Which wires NCCL took, as a table for rows, and as text for a log by itself."""

from collections.abc import Sequence

from scalebench.records.summary import Row
from scalebench.records.wires import NcclWires, Pair, Transport
from scalebench.report.tables.layout import PLACE, Column, Screen, table, value
from scalebench.report.tables.listing import Table, pages
from scalebench.report.words import wording

MOST_PAIRS = 8

Found = tuple[Row, Transport]


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


def _transport(found: Found) -> Transport:
    return found[1]


COLUMNS: tuple[Column[Found], ...] = (
    *PLACE,
    *(one.of(_transport) for one in OF_TRANSPORT),
)


WIRES = Table(
    "Wires",
    COLUMNS,
    lambda rows: [(row, one) for row in rows if row.wires for one in row.wires.transports],
    about=(
        "From NCCL's own log of the inspection launch, whose times do not count. P2P alone: "
        "nothing says whether it is NVLink or PCIe. GPUDirect: the adapter accesses GPU memory "
        "itself."
    ),
)
tables = pages(WIRES)


def findings(wires: NcclWires | None) -> list[str]:
    """Return a line for each wire that is slower than what the machine has."""
    return [
        f"{wording.plain(one.text, 300)}. Set: {wording.plain(one.remedy, 300)}"
        for one in (wires.findings if wires is not None else ())
    ]


def findings_of(rows: Sequence[Row]) -> list[str]:
    """Return the findings of all rows, each once."""
    return list(dict.fromkeys(said for row in rows for said in findings(row.wires)))


def sentence(rows: Sequence[Row]) -> str:
    """Return the findings of all rows in sentences; empty: there are none."""
    return " ".join(f"{said}." for said in findings_of(rows))


def render_wires(wires: NcclWires, width: int, color: bool, ascii_only: bool) -> str:
    """Return what ``scalebench doctor`` prints of a log. What it does not say is called unknown."""
    screen = Screen(width, color, ascii_only)
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
        screen.add(table(OF_TRANSPORT, wires.transports, screen.ascii_only))
    else:
        screen.line("The log has no channels: which wires is not known.")
    screen.lines(findings(wires) or (["No problems found."] if wires.transports else []))
    return screen.text()
