"""A lab leaves nothing behind, touches nothing else, and does not mind another one."""

import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest

from scalebench.launch.lab import Lab
from scalebench.launch.lab.lab import cpu_hierarchy
from scalebench.launch.local import LocalLauncher
from scalebench.spec.world import PAYLOAD_SHARE, VirtualHosts
from tests.conftest import ended
from tests.examples import cases
from tests.processes import left_after, wait_for

RUN = (
    *("run", "ddp", "-k", "ddp and not accumulate and not bucket", "--gpus", "1,2"),
    *("--launcher", "lab", "--link", "50mbit", "--workload", "paced", "--steps", "50"),
    *("--repeats", "1", "--no-report", "--no-trace", "--out", "r"),
)


def namespaces_of(pid):
    """The network namespaces that a process is in or holds open, by number."""
    found = set()
    for link in (Path(f"/proc/{pid}/ns/net"), *Path(f"/proc/{pid}/fd").glob("*")):
        try:
            target = os.readlink(link)
        except OSError:
            continue
        if target.startswith("net:"):
            found.add(target)
    return found


def namespaces_in_use():
    return set().union(*(namespaces_of(pid) for pid in psutil.pids()))


def command_of(pid):
    """A process's arguments; none when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def groups_of(launcher):
    hierarchy = cpu_hierarchy()
    return [g for f in hierarchy.candidates() for g in f.glob(f"scalebench-lab-{launcher}-*")]


def links():
    done = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True)
    return [line.split(": ")[1] for line in done.stdout.splitlines()]


class Running:
    """A run on virtual hosts that has come to training in several processes."""

    def __init__(self, launcher):
        self.launcher = launcher
        self.outside = os.readlink("/proc/self/ns/net")
        wait_for(lambda: launcher.poll() is not None or self.ranks(), 60, "a rank in its host")
        assert launcher.poll() is None, launcher.communicate()
        self.family = psutil.Process(launcher.pid).children(recursive=True)
        self.namespaces = set().union(*(namespaces_of(p.pid) for p in self.family))
        self.namespaces.discard(self.outside)

    def ranks(self):
        """Processes of the worker's that are in another namespace; in tests they are forks."""
        family = psutil.Process(self.launcher.pid).children(recursive=True)
        names = {b"scalebench.worker.process.zygote", b"tests.forks"}
        workers = [p.pid for p in family if names.intersection(command_of(p.pid))]
        return [pid for pid in workers if namespaces_of(pid) - {self.outside}]


ANY_USER = ("setpriv", "--bounding-set=-all,+setfcap", "--inh-caps=-all")
"""Before a command that is to make namespaces as any user makes them.

The user is still number 0, whom a user namespace may hold only with this one capability.
"""


@cases(
    "before, flags, groups, number, code",
    ((), ("--cpus-per-rank", "0.2"), 1, signal.SIGKILL, -9),
    (ANY_USER, (), 0, signal.SIGINT, 130),
)
def test_nothing_is_left_of_a_launcher(
    start_scalebench, project, before, flags, groups, number, code
):
    there = links()
    launcher = start_scalebench(*RUN, *flags, before=before)
    running = Running(launcher)
    assert len(running.namespaces) == 3  # a switch and two hosts
    assert len(groups_of(launcher.pid)) == groups
    assert links() == there
    launcher.send_signal(number)
    ended(launcher, code, 30)
    assert left_after(running.family) == []
    assert not running.namespaces & namespaces_in_use()
    with LocalLauncher():  # the next start
        assert groups_of(launcher.pid) == []
    assert links() == there


def test_a_lab_that_is_in_use_is_not_taken_for_an_abandoned_one():
    hosts = VirtualHosts(link_bit_per_s=(100_000_000,), cpus_per_rank=0.5)
    lab = Lab(hosts, 1)
    with LocalLauncher():
        assert len(groups_of(os.getpid())) == 1
    lab.close()
    assert groups_of(os.getpid()) == []


@pytest.mark.timed
def test_two_labs_at_once_keep_their_own_rates(measurers):
    rates = (20_000_000, 40_000_000)
    num_bytes = 1 << 20
    with ThreadPoolExecutor(2) as pool:
        found = [
            pool.submit(
                measurer, "all_reduces", 2, VirtualHosts(link_bit_per_s=(rate,)), 4, num_bytes
            )
            for measurer, rate in zip(measurers, rates, strict=True)
        ]
        times = [future.result(timeout=60) for future in found]
    for rate, of_ranks in zip(rates, times, strict=True):
        busbw = num_bytes * 8 / np.max(np.concatenate(of_ranks, axis=1), axis=1)
        assert busbw.max() == pytest.approx(rate * PAYLOAD_SHARE, rel=0.1), f"{rate}: {busbw}"
