"""Which wires of a launch are slower than what the machine has: a rule each, and what to set.

Variables: NCCL's user guide, "Environment Variables".
"""

import re
from collections.abc import Iterable, Iterator

from scalebench.records.wires import NcclWires, NodeWires, Transport, WireFinding

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
