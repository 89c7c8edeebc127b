"""NCCL's own log (``NCCL_DEBUG=INFO``), read into the wires that it took.

Formats are those of NCCL 2.4 to 2.30 (``INFO`` calls in ``src/transport``, ``src/graph`` and
``src/init.cc``). What a log does not say stays null: whether P2P is NVLink or PCIe stands in the
topology, which only ``NCCL_DEBUG_SUBSYS`` with GRAPH writes, or in nvidia-smi's.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scalebench.records.measured.rank import NcclWires, NodeLinks, NodeWires, Transport

_HEX = "[0-9a-fA-F]+"
_LINE = re.compile(r"(?P<host>[^\s:]+):(?P<pid>\d+):(?P<tid>\d+) \[-?\d+\] NCCL INFO (?P<text>.*)")
_FAILED = re.compile(r"Connection refused|onnection timed out|No route to host|is unreachable")
_VERSION = re.compile(r"[NR]CCL version (\d+\.\d+(?:\.\d+)?)")
_WIRE = re.compile(
    rf"(?:Channel|Ring) \d+(?:/\d+)? : (\d+)(?:\[({_HEX})\])? -> (\d+)(?:\[({_HEX})\])?"
    r" (?:\[(?:send|receive)\] )?via (.+)"
)
_NET = re.compile(r"NET/(.+?)/(\d+)(?:\(\d+\))?(/GDRDMA)?")
_COMMUNICATOR = re.compile(
    rf"comm \S+ rank (\d+) nranks (\d+) cudaDev (\d+)(?: nvmlDev (\d+))?(?: busId ({_HEX}))?",
    re.IGNORECASE,
)
_FOUND = re.compile(r"(NET/IB|NET/Socket|Bootstrap|NET)\s*: Using(?: interface)? ?(.*)")
_NUMBERED = re.compile(r"\[(\d+)\] ?([^\s:/]+)(?:(:\d+)[:\d]*/\w+)?")
_NAMED = re.compile(r"([^\s:]+):")
_BUNDLED = re.compile(r"\[(\d+)\]=\{([^}]*)\}")
_MERGED = re.compile(r"NET/IB : Made virtual device \[(\d+)\] name=(\S+\+\S+)")
_CHANNELS = re.compile(r"(?:(\d+) coll channels|Channel \d+/(\d+) :(?: +\d+)+ *$)")
_CONNECTED = re.compile(r"Connected (?:all |binomial )?(rings|trees|NVLS|Collnet|collnet|CollNet)")
_CHOSEN = re.compile(r"Bytes -> Algo (\w+) proto")
_GPU = re.compile(rf" *(?:\+ \w+\[[\d.]+\] - )?GPU/(?:\d+-)?({_HEX}) \((\d+)\)")
_FAST = re.compile(rf" *\+ (NVL|XGMI)\[[\d.]+\] - (NVS|GPU)/(?:\d+-)?({_HEX})")

_ALGORITHMS = {"rings": "ring", "trees": "tree", "nvls": "NVLS", "collnet": "CollNet"}
_FAST_LINK = {"NVL": "NVLink", "XGMI": "XGMI"}


@dataclass
class _Node:
    """What the log says of one host: GPUs by bus number, in lower case without leading zeros."""

    ranks: set[tuple[str, str]] = field(default_factory=set)
    adapters: dict[str, str] = field(default_factory=dict)
    interfaces: dict[str, str] = field(default_factory=dict)
    used: dict[str, None] = field(default_factory=dict)
    bus_of: dict[str, str] = field(default_factory=dict)
    bus_of_rank: dict[str, str] = field(default_factory=dict)
    fast: dict[str, dict[str, str]] = field(default_factory=dict)
    links: NodeLinks | None = None

    def link(self, *ends: tuple[str, str]) -> str | None:
        """Return what joins two GPUs, each given as rank and number; None: not known."""
        one, other = (self._bus(*end) for end in ends)
        if one in self.fast and other in self.fast:
            shared = self.fast[one].keys() & (self.fast[other].keys() | {other})
            return next((self.fast[one][end] for end in shared), "PCIe")
        links, numbers = self.links, [gpu for _, gpu in ends]
        by_nvml = any(gpu in self.bus_of for gpu in numbers) and all(map(str.isdecimal, numbers))
        if links is None or links.nvlinks is None or not by_nvml:
            return None
        first, second = sorted(map(int, numbers))
        if second >= links.num_gpus:
            return None
        return "NVLink" if (first, second) in links.nvlinks else "PCIe"

    def _bus(self, rank: str, gpu: str) -> str | None:
        """Return a GPU's bus number; channels have it in old versions, nvidia-smi's in new ones."""
        if gpu.lower() in self.fast:
            return gpu.lower()
        return self.bus_of.get(gpu) or self.bus_of_rank.get(rank)


def read_nccl_log(lines: Iterable[str], links: Iterable[NodeLinks] = ()) -> NcclWires | None:
    """Return the wires that a log reports; None: nothing in it is NCCL's.

    Args:
        lines: Of one rank's log, or of those of all ranks one after another or mixed.
        links: What the machines say themselves, those that could be asked.
    """
    return _Reader({one.host: one for one in links}).read(lines)


def merged(logs: Sequence[NcclWires]) -> NcclWires:
    """Return the wires of several ranks' logs together."""

    def union(name: str, of: Iterable[Any] = logs) -> list[Any]:
        return list(dict.fromkeys(item for one in of for item in getattr(one, name)))

    transports, nodes = defaultdict(list), defaultdict(list)
    for log in logs:
        for transport in log.transports:
            transports[transport.name, transport.gdr].append(transport)
        for node in log.nodes:
            nodes[node.host].append(node)
    return NcclWires(
        version=next((log.version for log in logs if log.version), None),
        network=next((log.network for log in logs if log.network), None),
        num_channels=max((log.num_channels for log in logs if log.num_channels), default=None),
        algorithms=union("algorithms"),
        communicator_sizes=sorted(union("communicator_sizes")),
        transports=[
            Transport(
                name=name, pairs=sorted(union("pairs", of)), adapters=union("adapters", of), gdr=gdr
            )
            for (name, gdr), of in transports.items()
        ],
        nvlink_unused=sorted(union("nvlink_unused")),
        nodes=[
            NodeWires(
                host=host,
                num_ranks=sum(one.num_ranks for one in of),
                **{name: union(name, of) for name in ("adapters", "interfaces", "used")},
                links=next((one.links for one in of if one.links), None),
            )
            for host, of in sorted(nodes.items())
        ],
        failed=any(log.failed for log in logs),
    )


class _Reader:
    """Reads lines in two passes: names come after the channels that they explain."""

    def __init__(self, links: Mapping[str, NodeLinks]) -> None:
        self.nodes: dict[str, _Node] = {}
        self.links = links
        self.wires: list[tuple[_Node, tuple[str, ...]]] = []
        self.gpu: dict[str, str] = {}
        self.version: str | None = None
        self.network: str | None = None
        self.channels: list[int] = []
        self.sizes: set[int] = set()
        self.algorithms: dict[str, None] = {}
        self.failed = False

    def read(self, lines: Iterable[str]) -> NcclWires | None:
        for line in lines:
            if version := _VERSION.search(line):
                self.version = self.version or version[1]
            self.failed = self.failed or ("NCCL" in line and bool(_FAILED.search(line)))
            if found := _LINE.search(line):
                node = self.nodes.setdefault(
                    found["host"], _Node(links=self.links.get(found["host"].partition(".")[0]))
                )
                self._read(node, found["pid"], found["pid"] + found["tid"], found["text"])
        return self._result() if self.nodes else None

    def _read(self, node: _Node, pid: str, thread: str, text: str) -> None:
        if wire := _WIRE.match(text):
            self.wires.append((node, wire.groups(default="")))
        elif joined := _COMMUNICATOR.search(text):
            node.ranks.add((pid, joined[3]))
            self.sizes.add(int(joined[2]))
            if joined[4] and joined[5]:
                node.bus_of[joined[4]] = joined[5].lower()
        elif found := _FOUND.match(text):
            self._name(node, found[1], found[2])
        elif merged := _MERGED.match(text):
            ports = {port.partition(":")[0]: port for port in node.adapters.values()}
            node.adapters[merged[1]] = "+".join(ports.get(n, n) for n in merged[2].split("+"))
        elif not self._read_topology(node, f"{id(node)} {thread}", text):
            self._read_choice(text)

    def _read_topology(self, node: _Node, thread: str, text: str) -> bool:
        """Note a GPU of NCCL's topology, or what the newest one is joined to."""
        if gpu := _GPU.match(text):
            bus = gpu[1].lower()
            self.gpu[thread] = bus
            node.fast.setdefault(bus, {})
            same = node.bus_of_rank.setdefault(gpu[2], bus) == bus
            node.bus_of_rank[gpu[2]] = bus if same else ""  # of another communicator
        elif (fast := _FAST.match(text)) and thread in self.gpu:
            end = "switch" if fast[2] == "NVS" else fast[3].lower()
            node.fast[self.gpu[thread]][end] = _FAST_LINK[fast[1]]
        else:
            return False
        return True

    def _read_choice(self, text: str) -> None:
        if text.startswith("Using network "):
            self.network = text.removeprefix("Using network ").strip()
        elif channels := _CHANNELS.match(text):
            self.channels.append(int(channels[1] or channels[2]))
        elif connected := _CONNECTED.search(text):
            self.algorithms[_ALGORITHMS[connected[1].lower()]] = None
        elif chosen := _CHOSEN.search(text):
            self.algorithms[_ALGORITHMS.get(f"{chosen[1].lower()}s", chosen[1])] = None

    def _name(self, node: _Node, kind: str, text: str) -> None:
        """Note adapters, or the interfaces of sockets: ``[0]mlx5_0:1/IB [1]…; OOB eth0:…``."""
        if kind == "Bootstrap" and node.interfaces:
            return
        names = node.adapters if kind == "NET/IB" else node.interfaces
        text = text.partition(";")[0]
        for bundle in _BUNDLED.finditer(text):  # ports that NCCL uses as one
            ports = (one[2] + one[3] for one in _NUMBERED.finditer(bundle[2]))
            names[bundle[1]] = "+".join(ports)
        numbered = list(_NUMBERED.finditer(_BUNDLED.sub("", text)))
        for one in numbered:
            names[one[1]] = one[2] + (one[3] or "")
        named = None if numbered or kind == "NET/IB" else _NAMED.match(text)
        if named and named[1] not in names.values():
            names[str(len(names))] = named[1]

    def _result(self) -> NcclWires:
        transports, unused = [], []
        for node, (sender, first, receiver, second, via) in self.wires:
            pair = (int(sender), int(receiver))
            link = node.link((sender, first), (receiver, second))
            name, gdr, adapter = _transport(via, node, link)
            adapters = _ports([adapter] if adapter is not None else [])
            node.used |= dict.fromkeys(adapters)
            transports.append(Transport(name=name, pairs=[pair], adapters=adapters, gdr=gdr))
            if name == "SHM" and link not in (None, "PCIe"):
                unused.append(pair)
        whole = NcclWires(
            version=self.version,
            network=self.network,
            num_channels=max(self.channels, default=None),
            algorithms=list(self.algorithms),
            communicator_sizes=list(self.sizes),
            transports=transports,
            nvlink_unused=unused,
            nodes=[
                NodeWires(
                    host=host,
                    num_ranks=len(node.ranks),
                    adapters=_ports(node.adapters.values()),
                    interfaces=list(dict.fromkeys(node.interfaces.values())),
                    used=list(node.used),
                    links=node.links,
                )
                for host, node in self.nodes.items()
            ],
            failed=self.failed,
        )
        return merged([whole])


def _ports(names: Iterable[str]) -> list[str]:
    """Return single ports, in order: NCCL joins the names of those that it uses as one."""
    return list(dict.fromkeys(port for name in names for port in name.split("+")))


def _transport(via: str, node: _Node, link: str | None) -> tuple[str, bool | None, str | None]:
    """Return a channel's transport, whether it has GDR, and its adapter."""
    if net := _NET.match(via):
        names = {"Socket": node.interfaces}.get(net[1], node.adapters)
        gdr = None if net[1] == "Socket" else net[3] is not None
        return f"NET/{net[1]}", gdr, names.get(net[2], net[2])
    if via.startswith(("SHM", "direct shared memory")):
        return "SHM", None, None
    if via.startswith("P2P/MNNVL"):
        return "P2P/NVLink", None, None
    if via.startswith(("P2P/indirect", "P2P/common device")):
        return "P2P/" + via.split("/")[1], None, None
    if via.startswith("P2P"):
        return f"P2P/{link}" if link else "P2P", None, None
    return via.partition("/")[0].strip(), None, None
