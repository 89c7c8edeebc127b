"""Where this process stands among cgroups, version 1 or 2, and what limits hold for it there.

A limit of a container, a batch system or a service manager holds for a group and all below it, so
every group from this process's own up to the top is asked, and the tightest counts.
Source: cgroups(7); the kernel's cgroup-v2.rst and cgroup-v1/memory.rst.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from scalebench.units import bytes_

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
    try:
        return path.read_text(encoding="ascii", errors="replace").partition("\n")[0].strip()
    except OSError:
        return ""
