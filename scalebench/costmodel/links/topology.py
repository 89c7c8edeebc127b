"""Machines by name or from a file: how many GPUs a node has, and what its links are.

Bandwidths are those of the data sheets, one direction, in bytes per second. Latencies are those of
one step of a ring with the protocol Simple in NCCL's own tuning table (``src/graph/tuning.cc``:
NVLink 3.4 µs, PCIe 5.7 µs, network 14 µs; older releases have 9.6 µs there). They are nominal:
nothing of it was measured, so a time made from them has no interval.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, FiniteFloat, ValidationError

from scalebench.costmodel.links.fitted import LinkTime, NoFit
from scalebench.costmodel.links.laws import hierarchical_all_reduce, law_terms
from scalebench.errors import UsageError, unknown_name
from scalebench.records.measured.rank import NcclWires, NodeWires, Transport, WireFinding
from scalebench.spec import Spec

NVLINK_S, PCIE_S, NETWORK_S = 3.4e-6, 5.7e-6, 14e-6


class Link(Spec):
    """One link of a rank.

    Attributes:
        bandwidth_byte_per_s: One direction.
        latency_s: Of one message.
        source: Where the figures are from.
    """

    bandwidth_byte_per_s: FiniteFloat = Field(gt=0)
    latency_s: FiniteFloat = Field(ge=0)
    source: str = ""


def _gigabytes(amount: float, latency_s: float, source: str) -> Link:
    return Link(bandwidth_byte_per_s=amount * 1e9, latency_s=latency_s, source=source)


def _gigabits(amount: float, source: str) -> Link:
    return _gigabytes(amount / 8, NETWORK_S, source)


LINKS: Mapping[str, Link] = {
    "nvlink2": _gigabytes(150, NVLINK_S, "V100 data sheet: 300 GB/s both directions"),
    "nvlink3": _gigabytes(300, NVLINK_S, "A100 data sheet: 600 GB/s both directions"),
    "nvlink4": _gigabytes(450, NVLINK_S, "H100 data sheet: 900 GB/s both directions"),
    "nvlink5": _gigabytes(900, NVLINK_S, "B200 data sheet: 1.8 TB/s both directions"),
    "pcie3": _gigabytes(15.75, PCIE_S, "PCI-SIG: 8 GT/s, 16 lanes, 128b/130b"),
    "pcie4": _gigabytes(31.5, PCIE_S, "PCI-SIG: 16 GT/s, 16 lanes, 128b/130b"),
    "pcie5": _gigabytes(63, PCIE_S, "PCI-SIG: 32 GT/s, 16 lanes, 128b/130b"),
    "infiniband-edr": _gigabits(100, "IBTA: EDR, 4 lanes"),
    "infiniband-hdr": _gigabits(200, "IBTA: HDR, 4 lanes"),
    "infiniband-ndr": _gigabits(400, "IBTA: NDR, 4 lanes"),
    "infiniband-xdr": _gigabits(800, "IBTA: XDR, 4 lanes"),
    "ethernet-10g": _gigabits(10, "IEEE 802.3ae"),
    "ethernet-25g": _gigabits(25, "IEEE 802.3by"),
    "ethernet-100g": _gigabits(100, "IEEE 802.3bj"),
    "ethernet-200g": _gigabits(200, "IEEE 802.3bs"),
    "ethernet-400g": _gigabits(400, "IEEE 802.3bs"),
}
"""Name → link of one rank."""


class Topology(Spec):
    """Nodes of equal ranks.

    Attributes:
        ranks_per_node: GPUs in a node.
        inside: Link of a rank to the others of its node.
        across: One network link of a node.
        links_across: How many of them a node has.
    """

    ranks_per_node: int = Field(ge=1)
    inside: Link
    across: Link
    links_across: int = Field(1, ge=1)

    @property
    def node_byte_per_s(self) -> float:
        """What all network links of a node carry together, one direction."""
        return self.links_across * self.across.bandwidth_byte_per_s

    def faster(self, factor: float) -> "Topology":
        """Return the same with links of ``factor`` times the bandwidth."""

        def scaled(link: Link) -> Link:
            return link.model_copy(
                update={"bandwidth_byte_per_s": factor * link.bandwidth_byte_per_s}
            )

        links = {"inside": scaled(self.inside), "across": scaled(self.across)}
        return self.model_copy(update=links)

    def time(
        self, op: str, world_size: int, size_bytes: int, hierarchical: bool = False
    ) -> LinkTime:
        """Return the nominal time of an operation by the ring's law; it has no interval.

        Over several nodes a flat ring crosses every node's network once, on all of its links
        together: as NCCL's rings do, one of them through each. ``hierarchical`` all-reduces are
        reduced inside the nodes first.

        Raises:
            NoFit: The law does not hold for so many ranks.
        """
        if world_size == 1:
            return LinkTime(0.0, 0.0, 0.0, ())
        if world_size <= self.ranks_per_node:
            time_s = self._ring(op, world_size, size_bytes, self.inside.bandwidth_byte_per_s,
                                self.inside.latency_s)  # fmt: skip
        elif hierarchical and op == "all_reduce":
            time_s = self._hierarchical(world_size, size_bytes)
        else:
            slowest = min(self.inside.bandwidth_byte_per_s, self.node_byte_per_s)
            time_s = self._ring(op, world_size, size_bytes, slowest, self.across.latency_s)
        return LinkTime(time_s, time_s, time_s, ())

    def _ring(
        self, op: str, world_size: int, size_bytes: int, bandwidth: float, latency_s: float
    ) -> float:
        law = "pairwise" if op == "all_to_all" else "ring"
        try:
            return law_terms(op, law, world_size).time_s(size_bytes, latency_s, bandwidth)
        except (UsageError, ValueError) as reason:
            raise NoFit(str(reason)) from reason

    def _hierarchical(self, world_size: int, size_bytes: int) -> float:
        nodes, left = divmod(world_size, self.ranks_per_node)
        if left:
            raise NoFit(
                f"{world_size} ranks do not fill nodes of {self.ranks_per_node}: a hierarchical "
                "all-reduce needs full nodes"
            )
        inside, across = hierarchical_all_reduce(self.ranks_per_node, nodes)
        share = self.node_byte_per_s / self.ranks_per_node
        link = self.inside
        within = inside.time_s(size_bytes, link.latency_s, link.bandwidth_byte_per_s)
        return within + across.time_s(size_bytes, self.across.latency_s, share)


def _machine(gpus: int, inside: str, across: str, links_across: int) -> Topology:
    return Topology(
        ranks_per_node=gpus, inside=LINKS[inside], across=LINKS[across], links_across=links_across
    )


TOPOLOGIES: Mapping[str, Topology] = {
    "dgx-a100": _machine(8, "nvlink3", "infiniband-hdr", 8),
    "dgx-h100": _machine(8, "nvlink4", "infiniband-ndr", 8),
    "dgx-b200": _machine(8, "nvlink5", "infiniband-ndr", 8),
    "dgx-b300": _machine(8, "nvlink5", "infiniband-xdr", 8),
    "gb200-nvl72": _machine(72, "nvlink5", "infiniband-ndr", 72),
    "gb300-nvl72": _machine(72, "nvlink5", "infiniband-xdr", 72),
    "pcie4-8x-ethernet-100g": _machine(8, "pcie4", "ethernet-100g", 1),
    "pcie4-4x-ethernet-25g": _machine(4, "pcie4", "ethernet-25g", 1),
}
"""Name → machine, as sold."""


def load_topology(name: str) -> Topology:
    """Return a topology by its name, or from a TOML or JSON file.

    In a file ``inside`` and ``across`` are names of `LINKS`, or tables of their own.

    Raises:
        UsageError: No such name; or the file cannot be used: which field, and why.
    """
    if name in TOPOLOGIES:
        return TOPOLOGIES[name]
    path = Path(name)
    if not path.is_file():
        raise unknown_name("topology", name, [*TOPOLOGIES, "a TOML or JSON file"])
    given = _read(path)
    named = {
        field: LINKS[value].model_dump() if isinstance(value, str) and value in LINKS else value
        for field, value in given.items()
    }
    for field in ("inside", "across"):
        if isinstance(named.get(field), str):
            raise unknown_name(f"link in {path}: {field}", str(named[field]), LINKS)
    try:
        return Topology.model_validate(named)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        line = _line_of(path, str(first["loc"][-1])) if first["loc"] else None
        at = f" (line {line})" if line else ""
        raise UsageError(f"{path}{at}: {where}: {first['msg']}.") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, OSError) as error:  # both decoders' errors name line and column
        raise UsageError(f"{path} cannot be read as a topology: {error}.") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path} is not a topology: give an object with ranks_per_node, inside, …")
    return found


def _line_of(path: Path, field: str) -> int | None:
    """Return the first line that names a field; None: it is missing."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((n for n, line in enumerate(lines, 1) if field in line), None)


_NOT_BETWEEN_MACHINES = re.compile(r"lo\d*|docker.*|veth.*|br-.*|virbr.*|cni.*|flannel.*|cali.*")


def wire_findings(wires: NcclWires) -> list[WireFinding]:
    """Return what is wrong with the wires, as far as the log and the machines say it."""
    rules = (_sockets, _without_nvlink, _without_gdr, _few_adapters, _interface)
    return [finding for rule in rules for finding in rule(wires)]


def _of(wires: NcclWires, name: str) -> list[Transport]:
    return [one for one in wires.transports if one.name == name]


def _num_pairs(transports: Iterable[Transport]) -> str:
    number = len({pair for one in transports for pair in one.pairs})
    return "1 pair" if number == 1 else f"{number} pairs"


def _there(node: NodeWires) -> list[str]:
    """Return a node's adapters, as sysfs lists them; without sysfs, as NCCL does."""
    own = node.links.adapters if node.links is not None else []
    return own if len(own) > len(node.adapters) else node.adapters


def _prefixes(names: Iterable[str]) -> str:
    """Return what NCCL_IB_HCA has to hold for adapters: ``mlx5`` for ``mlx5_0:1``, ``mlx5_1:1``."""
    return ",".join(dict.fromkeys(re.split(r"[_\d:]", name)[0] or name for name in names))


def _sockets(wires: NcclWires) -> Iterator[WireFinding]:
    found = _of(wires, "NET/Socket")
    node = next((node for node in wires.nodes if _there(node)), None)
    if found and node is not None:
        there = _there(node)
        yield WireFinding(
            rule="sockets",
            text=f"{_num_pairs(found)} of ranks use TCP sockets, but {node.host} has "
            f"{', '.join(there)} (InfiniBand or RoCE)",
            remedy=f"unset NCCL_IB_DISABLE and NCCL_NET; NCCL_IB_HCA={_prefixes(there)}; a "
            "container needs /dev/infiniband and libibverbs",
        )


def _without_nvlink(wires: NcclWires) -> Iterator[WireFinding]:
    if wires.nvlink_unused:
        number = len(wires.nvlink_unused)
        yield WireFinding(
            rule="no nvlink",
            text=f"{number} pair{'s' if number > 1 else ''} of ranks use host memory (SHM), but "
            "NVLink joins their GPUs",
            remedy="unset NCCL_P2P_DISABLE; NCCL_P2P_LEVEL=NVL",
        )


def _without_gdr(wires: NcclWires) -> Iterator[WireFinding]:
    through = [one for one in wires.transports if one.gdr is not None]
    without = [one for one in through if not one.gdr]
    if without:
        yield WireFinding(
            rule="no gdr",
            text=f"{_num_pairs(without)} of {_num_pairs(through).partition(' ')[0]} that use an "
            "adapter copy through host memory: GPUDirect RDMA is off",
            remedy="load nvidia-peermem (modprobe nvidia-peermem); NCCL_NET_GDR_LEVEL=SYS if GPU "
            "and adapter are far apart",
        )


def _few_adapters(wires: NcclWires) -> Iterator[WireFinding]:
    for node in wires.nodes:
        there = _there(node)
        used = [name for name in node.used if name not in node.interfaces]
        if used and len(used) < min(len(there), node.num_ranks):
            yield WireFinding(
                rule="few adapters",
                text=f"{node.num_ranks} ranks of {node.host} use {len(used)} of {len(there)} "
                f"adapters: {', '.join(used)}",
                remedy=f"NCCL_IB_HCA={_prefixes(there)}; NCCL_CROSS_NIC=1 on one network",
            )


def _interface(wires: NcclWires) -> Iterator[WireFinding]:
    """Sockets on an interface that no other machine reaches; also where no channel was made."""
    broken = wires.failed and not wires.transports
    if not (broken or _of(wires, "NET/Socket")):
        return
    for node in wires.nodes:
        names = node.interfaces[:1] if broken else [n for n in node.interfaces if n in node.used]
        bad = [name for name in names if _NOT_BETWEEN_MACHINES.fullmatch(name)]
        if bad:
            yield WireFinding(
                rule="interface",
                text=f"NCCL's sockets on {node.host} use {', '.join(bad)}, which no other machine "
                "reaches",
                remedy="NCCL_SOCKET_IFNAME=<the interface between the machines>, or "
                "NCCL_SOCKET_IFNAME=^lo,docker,veth,br-",
            )
            return
