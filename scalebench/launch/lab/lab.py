"""A lab: the virtual hosts of one session, and what is possible here of them.

CPU shares: a cgroup with a quota for each rank, under cgroup v1 or v2.

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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalebench.errors import EnvironmentUnfit
from scalebench.launch.lab.topology import INTERFACE, Network, NoNetwork
from scalebench.launch.lab.wakeups import Wakeups
from scalebench.machine import (
    Hierarchy,
    allowed_processors,
    own_hierarchy,
    processors_of_rank,
    read_processors,
)
from scalebench.spec.world import VirtualHosts

PREFIX = "scalebench-lab-"
PERIOD_US = 5_000
MIN_QUOTA_US = 1_000
REMOVAL_LIMIT_S = 2.0


class NoQuota(Exception):
    """CPU shares cannot be given here; the text says why."""


def quota_us(cpu_share: float) -> tuple[int, int]:
    """Return quota and period in microseconds that give ``cpu_share`` of a core."""
    period = max(PERIOD_US, round(MIN_QUOTA_US / cpu_share))
    return round(cpu_share * period), period


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

    The lab's group is locked for as long as this process lives; a group that no process has locked
    was left by a launcher that was killed, and the next one removes it.

    ``cpu_shares``: of a core, of each rank.

    Raises:
        NoQuota: It cannot be done here.
    """

    def __init__(self, cpu_shares: Sequence[float], hierarchy: Hierarchy) -> None:
        self.version = hierarchy.version
        self.root, self._lock = _make_root(hierarchy)
        try:
            if self.version == 2:
                (self.root / "cgroup.subtree_control").write_text("+cpu")
            self.members = [
                self._make(f"rank{rank}", share) for rank, share in enumerate(cpu_shares)
            ]
        except OSError as error:
            self.close()
            raise NoQuota(f"{self.root}: {error.strerror}") from error

    def _make(self, name: str, cpu_share: float) -> Path:
        """Make one group; return the file to which a process writes itself to join it."""
        folder = self.root / name
        folder.mkdir()
        quota, period = quota_us(cpu_share)
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
        for folder in cpu_hierarchy().candidates():
            remove_abandoned(folder)


def cpu_hierarchy() -> Hierarchy:
    """Return the hierarchy of this process that has the CPU controller.

    Raises:
        NoQuota: There is none.
    """
    try:
        found = own_hierarchy()
    except OSError as error:
        raise NoQuota(f"{error.filename}: {error.strerror}") from error
    if found is None:
        raise NoQuota("no cgroup with a CPU controller is mounted")
    return found


class Lab:
    """Virtual hosts for ranks to run in; a placement of `LocalLauncher`.

    ``num_ranks``: the largest number of ranks of a launch.

    Raises:
        EnvironmentUnfit: It cannot be made here; the text says why and what to do.
    """

    def __init__(self, hosts: VirtualHosts, num_ranks: int) -> None:
        self.hosts = hosts
        try:
            self.network = Network(hosts, hosts.num_hosts(num_ranks))
        except NoNetwork as error:
            raise EnvironmentUnfit(
                f"Virtual hosts cannot be made here: {error}. `scalebench doctor` says what is "
                "possible; --launcher local runs the ranks without virtual hosts."
            ) from None
        self.quotas: Quotas | None = None
        self.wakeups: Wakeups | None = None
        shares = hosts.shares(num_ranks)
        if shares is not None:
            try:
                self.quotas = Quotas(shares, cpu_hierarchy())
            except NoQuota as error:
                self.network.close()
                raise EnvironmentUnfit(
                    f"--cpus-per-rank: no CPU share can be set here: {error}. Run as root, or "
                    "where a cgroup with the CPU controller is delegated (systemd-run --user "
                    "--scope -p Delegate=yes ...); or leave it out."
                ) from None
            self.wakeups = Wakeups(processors_of_ranks(num_ranks, hosts.threads or 1))

    def of(self, rank: int) -> dict[str, Any]:
        """Return what puts a rank into its host: namespaces, quota, the interface to talk on."""
        network = self.network
        place = {
            "network_namespace": network.namespaces[self.hosts.host_of(rank)],
            "user_namespace": network.user_namespace,
            "cgroup": None if self.quotas is None else str(self.quotas.members[rank]),
        }
        return {"place": place, "environment": {"GLOO_SOCKET_IFNAME": INTERFACE}}

    def set_link(self, rank: int, up: bool) -> None:
        """Cut the link of a rank's host, or mend it.

        Raises:
            EnvironmentUnfit: It cannot be done here.
        """
        try:
            self.network.set_link(self.hosts.host_of(rank), up)
        except NoNetwork as error:
            raise EnvironmentUnfit(f"The link of rank {rank} cannot be changed: {error}.") from None

    def close(self) -> None:
        """Remove everything; the ranks have ended before."""
        self.network.close()
        if self.wakeups is not None:
            self.wakeups.close()
        if self.quotas is not None:
            self.quotas.close()


def processors_of_ranks(num_ranks: int, threads: int) -> set[int]:
    """Return the processors to which the ranks of a machine are pinned."""
    allowed = read_processors(allowed_processors())
    ranks = (processors_of_rank(allowed, threads, [None] * (r + 1)) for r in range(num_ranks))
    return {processor.number for mine in ranks for processor in mine}


@dataclass(frozen=True)
class Possible:
    """What virtual hosts could have here.

    Attributes:
        network: Why there can be no hosts with links; None: there can.
        quota: Why ranks can have no CPU share; None: they can.
        rootless: The hosts are made in a user namespace.
    """

    network: str | None
    quota: str | None
    rootless: bool = False


def try_lab() -> Possible:
    """Make a small lab and remove it again: nothing tells more surely what is possible."""
    hosts = VirtualHosts(link_bit_per_s=(100_000_000,), cpus_per_rank=0.5)
    no_network = no_quota = None
    rootless = False
    try:
        network = Network(hosts, 2)
        rootless = network.user_namespace is not None
        network.close()
    except NoNetwork as error:
        no_network = str(error)
    try:
        Quotas((0.5,), cpu_hierarchy()).close()
    except NoQuota as error:
        no_quota = str(error)
    return Possible(no_network, no_quota, rootless)
