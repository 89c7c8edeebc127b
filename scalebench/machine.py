"""What this process may use of its machine, and what the operating system says of it.

A processor, as the kernel counts them, may be half a core: with simultaneous multithreading (SMT)
two of them, siblings, share one. Ranks on siblings slow each other down, and so do ranks that are
spread over sockets at random, or that feed a GPU from the other socket. Source: the kernel's
admin-guide/cputopology.rst and ABI/testing/sysfs-devices-node, sysfs-bus-pci (``numa_node``).

A limit of a container, a batch system or a service manager holds for a cgroup, version 1 or 2, and
all below it, so every group from this process's own up to the top is asked, and the tightest
counts. Source: cgroups(7); the kernel's cgroup-v2.rst and cgroup-v1/memory.rst.
"""

import os
import platform
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import psutil

from scalebench.grouping import by_key
from scalebench.records.secret import names_a_secret, without_secrets
from scalebench.spec.world import World
from scalebench.units import bytes_

if TYPE_CHECKING:
    from scalebench.records.measured.rank import NodeLinks

SYSTEM = Path("/sys/devices/system")
PCI_DEVICES = Path("/sys/bus/pci/devices")
_VARIABLES = re.compile(
    r"^((NCCL|RCCL|TORCH|TORCHINDUCTOR|PYTORCH|GLOO|OMP|MKL|KMP|CUBLAS|HIP|FI|UCX)_"
    r"|(CUDA_VISIBLE_DEVICES|CUDA_LAUNCH_BLOCKING|CUDA_DEVICE_MAX_CONNECTIONS|NVIDIA_TF32_OVERRIDE)$)"
)


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
        for number in parse_list(_line(folder / "cpulist"))
    }
    return [_read_processor(number, system, nodes.get(number)) for number in sorted(numbers)]


def _read_processor(number: int, system: Path, node: int | None) -> Processor:
    topology = system / "cpu" / f"cpu{number}" / "topology"
    siblings = parse_list(_line(topology / "thread_siblings_list")) or [number]
    package = _line(topology / "physical_package_id")
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
    ordered = sorted(processors, key=lambda p: (p.package, p.node or 0, p.core, p.sibling))
    by_core = by_key((processor.core, processor) for processor in ordered)
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
    text = _line(devices / f"{domain[-4:]}:{rest}" / "numa_node")
    return int(text) if text.isdigit() else None  # -1: one node, or not known


UNLIMITED_BYTES = 1 << 60
"""Version 1 writes "no limit" as a number near 2^63."""


@dataclass(frozen=True)
class Hierarchy:
    """Where a controller is, and who this process is there.

    Attributes:
        version: Of cgroups, 1 or 2.
        own: Folder of this process's group.
        top: Folder at which the hierarchy is mounted.
    """

    version: int
    own: Path
    top: Path

    def candidates(self) -> Iterator[Path]:
        """Return this process's group and those above it, the nearest first."""
        yield self.own
        if self.own != self.top:
            for folder in self.own.parents:
                yield folder
                if folder == self.top:
                    return


def find_hierarchy(mounts: str, memberships: str, controller: str = "cpu") -> Hierarchy | None:
    """Return where a controller is; None: nowhere.

    ``mounts`` and ``memberships``: texts of ``/proc/self/mounts`` and ``/proc/self/cgroup``.
    Version 2 has one hierarchy for every controller.
    """
    groups = dict(_memberships(memberships))
    unified: Path | None = None
    for line in mounts.splitlines():
        _, folder, kind, options = line.split()[:4]
        if kind == "cgroup" and controller in options.split(",") and controller in groups:
            return _hierarchy(1, Path(folder), groups[controller])
        if kind == "cgroup2":
            unified = Path(folder)
    if unified is None or "" not in groups:
        return None
    return _hierarchy(2, unified, groups[""])


def _memberships(text: str) -> Iterator[tuple[str, str]]:
    """Return controller → group; the unified hierarchy's controller is empty."""
    for line in text.splitlines():
        _, controllers, group = line.split(":", 2)
        yield from ((controller, group) for controller in controllers.split(","))


def _hierarchy(version: int, top: Path, group: str) -> Hierarchy:
    inside = PurePosixPath(group).relative_to("/") if group.startswith("/") else PurePosixPath()
    own = top / inside
    return Hierarchy(version, own if ".." not in inside.parts and own.is_dir() else top, top)


def own_hierarchy(controller: str = "cpu") -> Hierarchy | None:
    """Return the hierarchy of this process for a controller; None: there is none.

    Raises:
        OSError: The system does not tell.
    """
    mounts, memberships = (Path(f"/proc/self/{name}").read_text() for name in ("mounts", "cgroup"))
    return find_hierarchy(mounts, memberships, controller)


def cpu_quota(hierarchy: Hierarchy | None) -> float | None:
    """Return how many cores this process may keep busy by its cgroups; None: no limit."""
    found = []
    for group in hierarchy.candidates() if hierarchy else ():
        if hierarchy and hierarchy.version == 2:
            quota, _, period = _line(group / "cpu.max").partition(" ")
        else:
            quota, period = (_line(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        if quota.isdigit() and period.isdigit() and int(quota) and int(period):
            found.append(int(quota) / int(period))
    return min(found, default=None)


def memory_bytes(hierarchy: Hierarchy | None) -> int | None:
    """Return how much memory this process may have by its cgroups, bytes; None: no limit."""
    tightest = _memory_limit(hierarchy)
    return tightest[0] if tightest else None


def _memory_limit(hierarchy: Hierarchy | None) -> tuple[int, Path] | None:
    """Return the tightest limit of memory, bytes, and the file in which it stands."""
    name = "memory.max" if hierarchy and hierarchy.version == 2 else "memory.limit_in_bytes"
    files = [group / name for group in (hierarchy.candidates() if hierarchy else ())]
    told = [(int(_line(file)), file) for file in files if _line(file).isdigit()]
    return min((limit for limit in told if limit[0] < UNLIMITED_BYTES), default=None)


class OutOfMemoryWatch:
    """Tells whether the kernel's out-of-memory killer has struck since this was made.

    The kernel counts the processes of a group that were killed, whichever limit was reached: the
    group's, one above it or the machine's. So this process's group is asked; at the root of
    version 2, which does not count, the whole machine is.

    ``hierarchy`` is that of the memory controller; ``vmstat`` has the machine's counters.
    """

    def __init__(
        self, hierarchy: Hierarchy | None = None, vmstat: Path = Path("/proc/vmstat")
    ) -> None:
        with suppress(OSError):
            hierarchy = hierarchy or own_hierarchy("memory")
        self.hierarchy = hierarchy
        name = "memory.events" if hierarchy and hierarchy.version == 2 else "memory.oom_control"
        groups = hierarchy.candidates() if hierarchy else ()
        self.files = [*(group / name for group in groups), vmstat]
        self.before = self._num_killed()

    def _num_killed(self) -> int | None:
        for file in self.files:
            with suppress(OSError, ValueError):
                counts = dict(line.split()[:2] for line in file.read_text().splitlines())
                if "oom_kill" in counts:
                    return int(counts["oom_kill"])
        return None

    def killed(self) -> str | None:
        """Say what was reached and what to do, if a process was killed; None: not that we know."""
        now = self._num_killed()
        if now is None or self.before is None or now <= self.before:
            return None
        limit = _memory_limit(self.hierarchy)
        reached = (
            f"a cgroup's limit is {bytes_(limit[0])} ({limit[1]})"
            if limit
            else "no limit of a cgroup is visible here, so the machine, or a container around "
            "this one, is full"
        )
        return (
            f"the kernel's out-of-memory killer ended a process: {reached}. Give the job more "
            "memory, or use a smaller batch, a smaller model or fewer ranks on this machine"
        )


def _line(path: Path) -> str:
    """Return the first line of a file; empty: it cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace").partition("\n")[0].strip()
    except OSError:
        return ""


def num_cores() -> int:
    """Return how many cores this process may keep busy: affinity, and the cgroup's quota.

    Physical cores: processors that share one (SMT siblings) count once.
    """
    allowed = count_cores(read_processors(allowed_processors()))
    quota = cgroup_cpu_quota()
    return max(1, min(allowed, int(quota)) if quota else allowed)


def cgroup_cpu_quota() -> float | None:
    """Return the CPU limit of this process's cgroups in cores, or None without one."""
    try:
        return cpu_quota(own_hierarchy("cpu"))
    except OSError:
        return None


def cgroup_memory_bytes() -> int | None:
    """Return the memory limit of this process's cgroups in bytes, or None without one."""
    try:
        return memory_bytes(own_hierarchy("memory"))
    except OSError:
        return None


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text().split("\n", 1)[0].strip()
    except (OSError, UnicodeDecodeError):
        return ""


def cpu_model() -> str:
    """Return the processor's name, as good as the platform tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def relevant_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that change results, by allow-list; never a secret."""
    return {
        name: without_secrets(value)
        for name, value in sorted(environment.items())
        if _VARIABLES.match(name) and not names_a_secret(name)
    }


_DRIVERS = ("/proc/driver/nvidia/version", "/sys/module/amdgpu/version")
_VERSION = re.compile(r"(?<![\w.])\d+(?:\.\d+){1,3}(?![\w.])")


def driver_version(paths: Sequence[str] = _DRIVERS) -> str | None:
    """Return the version of the GPUs' kernel driver, as it tells it itself; None: there is none.

    Args:
        paths: Files in whose first line it stands: NVIDIA's names the module before the version.
    """
    for path in paths:
        if found := _VERSION.search(_first_line(path)):
            return found[0]
    return None


def fingerprint(survey: Mapping[str, Any], world: World | None = None) -> dict[str, Any]:
    """Return what has to be the same for two runs to be comparable, and what explains them.

    ``survey`` is from the worker; the first machine of ``world`` is this one.
    """
    return {
        **({} if world is None else {"world": world.model_dump(mode="json")}),
        **survey,
        "host": platform.node(),
        "os": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "driver": driver_version(),
        "cpu": cpu_model(),
        "cores": num_cores(),
        "processors": len(allowed_processors()),
        "memory_bytes": psutil.virtual_memory().total,
        "cgroup_memory_bytes": cgroup_memory_bytes(),
        "cgroup_cpus": cgroup_cpu_quota(),
        "variables": relevant_variables(os.environ),
    }


DECISIVE = ("torch", "cuda", "hip", "nccl", "driver", "cpu", "cores", "machine")
"""Fields of the fingerprint without whose agreement two runs are not comparable."""


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Return the decisive fields in which two fingerprints differ, devices included."""
    different = [name for name in DECISIVE if ours.get(name) != theirs.get(name)]
    names = [[d.get("name") for d in side.get("devices") or []] for side in (ours, theirs)]
    different += ["devices"] if names[0] != names[1] else []
    worlds = [_shape(side.get("world")) for side in (ours, theirs)]
    return different + (["number of nodes, ranks or cores"] if worlds[0] != worlds[1] else [])


def _shape(world: Mapping[str, Any] | None) -> list[tuple[int, ...]]:
    """Return what of a world has to be the same, whatever its machines are called."""
    nodes = (world or {}).get("nodes", [])
    return [(len(node["ranks"]), node["num_cores"], node["num_gpus"]) for node in nodes]


def elsewhere(identified: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> list[str]:
    """Return in what a machine that was identified earlier is not the one with this fingerprint.

    ``identified``: by `identity`; empty: nothing is known of it.
    """
    if not identified:
        return ["unknown machine"]
    here = identity(fingerprint)
    return [name for name in here if identified.get(name) != here[name]]


def identity(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """Return what tells one machine, with its software, from another."""
    devices = [device.get("name") for device in fingerprint.get("devices") or []]
    return {name: fingerprint.get(name) for name in ("host", *DECISIVE)} | {"devices": devices}


def host_links(ask_gpus: bool = True, sysfs: Path = Path("/sys/class/infiniband")) -> "NodeLinks":
    """Return this machine's InfiniBand and RoCE ports, and which GPUs NVLink joins.

    ``ask_gpus`` calls nvidia-smi, which can take seconds. Of several speeds of adapters in
    ``sysfs`` the fastest ports count: a slower one serves storage or management.
    """
    # Not above: it loads numpy, whose threads keep a process from making a user namespace.
    from scalebench.records.measured.rank import NodeLinks

    rates: dict[str, float] = {}
    for port in sorted(sysfs.glob("*/ports/*")):
        layer = _first_line(f"{port}/link_layer")
        if "ACTIVE" in _first_line(f"{port}/state") and layer in ("InfiniBand", "Ethernet"):
            rate = _first_line(f"{port}/rate").partition(" ")[0]
            rates[f"{port.parts[-3]}:{port.name}"] = float(rate or 0)
    fastest = [name for name, rate in rates.items() if rate == max(rates.values())]
    host = platform.node().partition(".")[0]
    if not ask_gpus:
        return NodeLinks(host=host, adapters=fastest)
    try:
        asked = ["nvidia-smi", "topo", "-m"]
        told = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return NodeLinks(host=host, adapters=fastest)
    gpus = [line.split() for line in told.splitlines() if re.match(r"GPU\d+\s", line)]
    joined = [
        (row, column)
        for row, words in enumerate(gpus)
        for column in range(row + 1, len(gpus))
        if re.fullmatch(r"NV\d+", words[column + 1])
    ]
    return NodeLinks(host=host, adapters=fastest, nvlinks=joined, num_gpus=len(gpus))
