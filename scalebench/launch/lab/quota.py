"""CPU shares: a cgroup with a quota for each rank, under cgroup v1 or v2.

The kernel stops a group that has used up its quota until the next period begins. The period is
5 ms, so that a step is not held up for longer than that at a time, unless the share is so small
that the quota would fall below the kernel's least, 1 ms. Source: the kernel's
Documentation/scheduler/sched-bwc.rst.

Groups are made below the one of this process, or, where that one may not have any, below the
nearest above it that may. Nothing that is there already is changed.
"""

import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

PREFIX = "scalebench-lab-"
PERIOD_US = 5_000
MIN_QUOTA_US = 1_000
REMOVAL_LIMIT_S = 2.0


class NoQuota(Exception):
    """CPU shares cannot be given here; the text says why."""


@dataclass(frozen=True)
class Hierarchy:
    """Where the CPU controller is, and who this process is there.

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


def quota_us(share: float) -> tuple[int, int]:
    """Return quota and period in microseconds that give ``share`` of a core."""
    period = max(PERIOD_US, round(MIN_QUOTA_US / share))
    return round(share * period), period


def find_hierarchy(mounts: str, memberships: str) -> Hierarchy:
    """Return where the CPU controller is.

    Args:
        mounts: Text of ``/proc/self/mounts``.
        memberships: Text of ``/proc/self/cgroup``.

    Raises:
        NoQuota: It is nowhere.
    """
    groups = dict(_memberships(memberships))
    unified: Path | None = None
    for line in mounts.splitlines():
        _, folder, kind, options = line.split()[:4]
        if kind == "cgroup" and "cpu" in options.split(",") and "cpu" in groups:
            return _hierarchy(1, Path(folder), groups["cpu"])
        if kind == "cgroup2":
            unified = Path(folder)
    if unified is None or "" not in groups:
        raise NoQuota("no cgroup with a CPU controller is mounted")
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


def may_hold_groups(folder: Path, version: int) -> bool:
    """Return whether groups made in ``folder`` have a CPU controller."""
    if version == 1:
        return (folder / "cpu.cfs_quota_us").exists() or (folder / "cgroup.procs").exists()
    try:
        return "cpu" in (folder / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False


class Quotas:
    """One group per rank below a group of this lab's own.

    The lab's group is locked for as long as this process lives; a group that nobody has locked
    was left by a launcher that was killed, and the next one removes it.

    Args:
        share: Of a core, for each rank.
        num_ranks: How many groups.
        hierarchy: Where.

    Raises:
        NoQuota: It cannot be done here.
    """

    def __init__(self, share: float, num_ranks: int, hierarchy: Hierarchy) -> None:
        self.version = hierarchy.version
        self.root, self._lock = _make_root(hierarchy)
        try:
            if self.version == 2:
                (self.root / "cgroup.subtree_control").write_text("+cpu")
            self.members = [self._make(f"rank{rank}", share) for rank in range(num_ranks)]
        except OSError as error:
            self.close()
            raise NoQuota(f"{self.root}: {error.strerror}") from error

    def _make(self, name: str, share: float) -> Path:
        """Make one group; return the file to which a process writes itself to join it."""
        folder = self.root / name
        folder.mkdir()
        quota, period = quota_us(share)
        if self.version == 1:
            (folder / "cpu.cfs_period_us").write_text(str(period))
            (folder / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (folder / "cpu.max").write_text(f"{quota} {period}")
        return folder / "cgroup.procs"

    def close(self) -> None:
        """Remove the groups; their processes have ended or are about to."""
        remove_groups(self.root, REMOVAL_LIMIT_S)
        os.close(self._lock)


def _make_root(hierarchy: Hierarchy) -> tuple[Path, int]:
    """Make and lock the lab's own group where that is possible.

    Raises:
        NoQuota: Nowhere.
    """
    refusals = []
    for folder in hierarchy.candidates():
        if not may_hold_groups(folder, hierarchy.version):
            continue
        try:
            return _make_locked(folder)
        except OSError as error:
            refusals.append(f"{folder}: {error.strerror}")
    why = refusals[0] if refusals else f"no CPU controller is delegated to {hierarchy.own}"
    raise NoQuota(why)


def _make_locked(parent: Path) -> tuple[Path, int]:
    while True:
        root = parent / f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        root.mkdir()
        with suppress(FileNotFoundError):  # another launcher took it for abandoned
            lock = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if root.exists():
                return root, lock
            os.close(lock)


def remove_abandoned(parent: Path) -> None:
    """Remove the groups of labs whose launcher is gone."""
    for root in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_groups(root, 0.0)
            finally:
                os.close(descriptor)


def remove_groups(root: Path, limit_s: float) -> None:
    """Remove a lab's group and those in it, waiting for processes that are about to end."""
    deadline = time.monotonic() + limit_s
    while root.exists():
        for folder in (*root.glob("rank*"), root):
            with suppress(OSError):
                folder.rmdir()
        if time.monotonic() >= deadline:
            return
        time.sleep(0.02)


def remove_abandoned_groups() -> None:
    """Remove, wherever this process could have made them, the groups of killed launchers."""
    with suppress(NoQuota):
        for folder in own_hierarchy().candidates():
            remove_abandoned(folder)


def own_hierarchy() -> Hierarchy:
    """Return the hierarchy of this process.

    Raises:
        NoQuota: There is none.
    """
    try:
        mounts, memberships = (Path(f"/proc/self/{n}").read_text() for n in ("mounts", "cgroup"))
    except OSError as error:
        raise NoQuota(f"{error.filename}: {error.strerror}") from error
    return find_hierarchy(mounts, memberships)
