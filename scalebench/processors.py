"""Which processors a machine has, and in which order ranks take them.

A processor, as the kernel counts them, may be half a core: with simultaneous multithreading (SMT)
two of them, siblings, share one. Ranks on siblings slow each other down, and so do ranks that are
spread over sockets at random, or that feed a GPU from the other socket. Source: the kernel's
admin-guide/cputopology.rst and ABI/testing/sysfs-devices-node, sysfs-bus-pci (``numa_node``).
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

SYSTEM = Path("/sys/devices/system")
PCI_DEVICES = Path("/sys/bus/pci/devices")


@dataclass(frozen=True)
class Processor:
    """One processor, as the kernel counts them.

    Attributes:
        number: The kernel's.
        core: Its physical core, by the lowest number of the core's processors.
        sibling: How many processors of the same core have a lower number.
        package: Its socket; 0 where the kernel does not say.
        node: Its NUMA node; None where the kernel does not say.
    """

    number: int
    core: int
    sibling: int
    package: int = 0
    node: int | None = None


def allowed_processors() -> list[int]:
    """Return the processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def read_processors(numbers: Iterable[int], system: Path = SYSTEM) -> list[Processor]:
    """Return what the kernel says of processors; each is a core where it says nothing."""
    nodes = {
        number: int(folder.name.removeprefix("node"))
        for folder in sorted((system / "node").glob("node[0-9]*"))
        for number in parse_list(_text(folder / "cpulist"))
    }
    return [_read_processor(number, system, nodes.get(number)) for number in sorted(numbers)]


def _read_processor(number: int, system: Path, node: int | None) -> Processor:
    topology = system / "cpu" / f"cpu{number}" / "topology"
    siblings = parse_list(_text(topology / "thread_siblings_list")) or [number]
    package = _text(topology / "physical_package_id")
    return Processor(
        number,
        core=min(siblings),
        sibling=sum(other < number for other in siblings),
        package=int(package) if package.isdigit() else 0,
        node=node,
    )


def parse_list(text: str) -> list[int]:
    """Return the numbers of a list as the kernel writes it: ``0-3,8`` is 0, 1, 2, 3, 8."""
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
        return []
    spans = (span.partition("-") for span in text.split(","))
    return [n for low, _, high in spans for n in range(int(low), int(high or low) + 1)]


def count_cores(processors: Sequence[Processor]) -> int:
    """Return the number of physical cores: siblings count once."""
    return len({processor.core for processor in processors})


def in_order(processors: Iterable[Processor]) -> list[Processor]:
    """Return processors in the order in which ranks take them.

    One of each core first, socket after socket and NUMA node after NUMA node; then the siblings.
    """
    by_core: dict[int, list[Processor]] = {}
    for processor in sorted(processors, key=lambda p: (p.package, p.node or 0, p.core, p.sibling)):
        by_core.setdefault(processor.core, []).append(processor)
    turns = zip_longest(*by_core.values())
    return [processor for turn in turns for processor in turn if processor is not None]


def processors_of_rank(
    processors: Sequence[Processor], threads: int, gpu_nodes: Sequence[int | None]
) -> list[Processor]:
    """Return the processors of the last of several ranks of a machine.

    The ranks choose one after the other, each ``threads`` processors that no earlier rank took:
    whole cores before siblings, and of these the ones on its GPU's NUMA node first. When all are
    taken, choosing starts again from all.

    Args:
        processors: That the ranks may use, at least one.
        threads: Processors for each rank, at least 1.
        gpu_nodes: NUMA node of each rank's GPU, in the order of the local ranks; None: no GPU, or
            the machine does not say.
    """
    ordered = in_order(processors)
    whole_cores = set(ordered[: count_cores(ordered)])
    free, mine = list[Processor](), list[Processor]()
    for node in gpu_nodes:
        mine = []
        while len(mine) < min(threads, len(ordered)):
            free = free or [processor for processor in ordered if processor not in mine]
            mine.append(min(free, key=lambda p: (p not in whole_cores, node not in (None, p.node))))
            free.remove(mine[-1])
    return mine


def gpu_node(bus_id: str, devices: Path = PCI_DEVICES) -> int | None:
    """Return the NUMA node that a GPU is attached to; None where the machine does not say.

    ``bus_id``: the GPU's address on the PCI bus, ``0000:1B:00.0``, or as NVML writes it with a
    domain of eight digits.
    """
    domain, _, rest = bus_id.lower().partition(":")
    text = _text(devices / f"{domain[-4:]}:{rest}" / "numa_node")
    return int(text) if text.isdigit() else None  # -1: one node, or not known


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
