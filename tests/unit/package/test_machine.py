import json
from pathlib import Path

import pytest

from scalebench import machine
from scalebench.machine import Hierarchy, OutOfMemoryWatch, Processor, cpu_quota, memory_bytes
from tests.examples import cases

NVIDIA = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
    "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
)
NVIDIA_OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build  "
    "(dvs-builder@U16-I3-B03-4-3)  Sat May 24 07:26:22 UTC 2025\n"
)


@cases(
    "text, version",
    (NVIDIA, "550.54.15"),
    (NVIDIA_OPEN, "575.57.08"),
    ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256  Thu\n", "470.256"),
    ("6.8.5\n", "6.8.5"),
    ("nothing of the kind\n", None),
    ("", None),
)
def test_the_driver_tells_its_version(tmp_path, text, version):
    path = tmp_path / "version"
    path.write_text(text)
    assert machine.driver_version([str(tmp_path / "absent"), str(path)]) == version


@cases("quota, cores", (None, 4), (8.0, 4), (4.0, 4), (2.5, 2), (1.0, 1), (0.25, 1))
def test_cores_are_physical_ones_as_far_as_the_quota_goes(monkeypatch, quota, cores):
    """Four cores with two siblings each: eight processors."""
    monkeypatch.setattr(machine, "allowed_processors", lambda: list(range(8)))
    monkeypatch.setattr(
        machine, "read_processors", lambda of: [Processor(n, n % 4, n // 4) for n in of]
    )
    monkeypatch.setattr(machine, "cgroup_cpu_quota", lambda: quota)
    assert machine.num_cores() == cores
    told = machine.fingerprint({})
    assert (told["cores"], told["processors"]) == (cores, 8)


def test_another_driver_is_another_machine():
    ours = machine.fingerprint({"torch": "2.13.0", "devices": []})
    theirs = ours | {"driver": "550.54.15"}
    assert machine.differences(ours, theirs) == ["driver"]
    assert machine.elsewhere(machine.identity(theirs), ours) == ["driver"]
    assert machine.elsewhere(machine.identity(ours), ours) == []
    assert machine.elsewhere({}, ours) == ["unknown machine"]


TOPOLOGY = """\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV18\tSYS\tPIX\t0-31\t0
GPU1\tNV18\t X \tSYS\tNODE\t0-31\t0
GPU2\tSYS\tSYS\t X \tSYS\t32-63\t1
NIC0\tPIX\tNODE\tSYS\t X \t

Legend:

  NV#  = Connection traversing a bonded set of # NVLinks
"""


@pytest.fixture
def adapters(tmp_path):
    """A storage port, two fast ones, one that is down, and one of another kind."""
    ports = [
        ("mlx5_0", "1", "4: ACTIVE", "InfiniBand", "400 Gb/sec (4X NDR)"),
        ("mlx5_1", "1", "4: ACTIVE", "Ethernet", "400 Gb/sec (4X NDR)"),
        ("mlx5_2", "2", "1: DOWN", "InfiniBand", "400 Gb/sec (4X NDR)"),
        ("mlx5_bond_0", "1", "4: ACTIVE", "Ethernet", "25 Gb/sec (1X EDR)"),
        ("efa_0", "1", "4: ACTIVE", "Unspecified", "100 Gb/sec (4X EDR)"),
    ]
    for name, port, *values in ports:
        folder = tmp_path / "infiniband" / name / "ports" / port
        folder.mkdir(parents=True)
        for file, value in zip(("state", "link_layer", "rate"), values, strict=True):
            (folder / file).write_text(value + "\n")
    return tmp_path / "infiniband"


@cases(
    "script, nvlinks, num_gpus",
    (f"printf '%s' '{TOPOLOGY}'", [(0, 1)], 3),
    ("echo 'NVIDIA-SMI has failed' ; exit 9", None, 0),
    (None, None, 0),
)
def test_links_are_those_of_the_kernel_and_of_nvidia_smi(
    adapters, tmp_path, monkeypatch, script, nvlinks, num_gpus
):
    if script is not None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = machine.host_links(sysfs=adapters)
    assert found.adapters == ["mlx5_0:1", "mlx5_1:1"]
    assert (found.nvlinks, found.num_gpus) == (nvlinks, num_gpus)
    assert machine.host_links(False, tmp_path / "none").adapters == []


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


@pytest.fixture
def v2(tmp_path):
    """A job of a batch system: its slice may use 1.5 cores and 4 GB, the job itself all of it."""
    write(tmp_path, cpu__stat="x")  # the root has no limits in version 2
    write(tmp_path / "batch", cpu__max="150000 100000", memory__max="4000000000")
    write(tmp_path / "batch" / "job", cpu__max="max 100000", memory__max="max")
    return Hierarchy(2, tmp_path / "batch" / "job", tmp_path)


def test_the_limit_of_a_group_above_holds(v2):
    assert cpu_quota(v2) == 1.5
    assert memory_bytes(v2) == 4_000_000_000


@cases("text", "", "nonsense", "0 0", "max max", "-1 100000")
def test_what_cannot_be_read_is_no_limit(tmp_path, text):
    write(tmp_path, cpu__max=text, memory__max=text)
    found = Hierarchy(2, tmp_path, tmp_path)
    assert cpu_quota(found) is None
    assert memory_bytes(found) is None or text == "0 0"


def test_what_was_killed_for_memory_is_told_with_the_limit_of_the_group_above(v2):
    write(v2.own, memory__events="oom 3\noom_kill 3")
    watch = OutOfMemoryWatch(v2)
    assert watch.killed() is None
    write(v2.own, memory__events="oom 4\noom_kill 4")
    assert f"limit is 4.00 GB ({v2.top / 'batch' / 'memory.max'})" in watch.killed()


RECORDED = json.loads(
    (Path(__file__).parents[2] / "recorded" / "cpu_topologies.json").read_text(encoding="utf-8")
)


class Machine:
    """A recorded recorded, as files of the kernel below ``root``."""

    def __init__(self, name, root):
        told = RECORDED[name]
        self.system, self.pci = root / "system", root / "pci"
        for node, numbers in enumerate(told["nodes"]):
            _write(self.system / "node" / f"node{node}" / "cpulist", numbers)
        everyone = sorted(n for numbers in told["nodes"] for n in machine.parse_list(numbers))
        apart = told["sibling_distance"]
        for package, numbers in enumerate(told["packages"]):
            for number in machine.parse_list(numbers):
                first = number - number % 2 if apart == 1 else number % apart
                topology = self.system / "cpu" / f"cpu{number}" / "topology"
                siblings = f"{first}-{first + 1}" if apart == 1 else f"{first},{first + apart}"
                _write(topology / "thread_siblings_list", siblings)
                _write(topology / "physical_package_id", str(package))
        for bus_id, node in told["gpus"].items():
            _write(self.pci / bus_id / "numa_node", str(node))
        self.processors = machine.read_processors(everyone, self.system)
        self.gpu_nodes = [machine.gpu_node(bus_id, self.pci) for bus_id in told["gpus"]]

    def taken(self, threads, gpu_nodes, of=None):
        allowed = [p for p in self.processors if of is None or p.number in set(of)]
        return [
            [p.number for p in machine.processors_of_rank(allowed, threads, gpu_nodes[: rank + 1])]
            for rank in range(len(gpu_nodes))
        ]


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


@pytest.fixture
def recorded(tmp_path):
    return lambda name: Machine(name, tmp_path / name)


def test_a_rank_sits_beside_its_gpu(recorded):
    dgx = recorded("dgx-h100")
    assert dgx.gpu_nodes == [0, 0, 0, 0, 1, 1, 1, 1]
    taken = dgx.taken(14, dgx.gpu_nodes)
    assert taken[0] == list(range(14))
    assert taken[4] == list(range(56, 70))
    assert sorted(n for mine in taken for n in mine) == list(range(112))  # no sibling, none twice
    # The first visible GPU is the machine's sixth: the rank goes to the other socket.
    assert dgx.taken(4, dgx.gpu_nodes[5:6]) == [[56, 57, 58, 59]]


def test_only_what_is_allowed_is_taken(recorded):
    vm = recorded("vm-with-siblings")
    assert vm.taken(1, [None, None], of=[1, 3]) == [[1], [3]]  # siblings of cores not allowed
    assert machine.count_cores([p for p in vm.processors if p.number in (0, 1)]) == 1


@cases("text, numbers", ("0-3,8", [0, 1, 2, 3, 8]), ("5", [5]), ("", []), ("all", []), ("1,", []))
def test_the_kernels_lists(text, numbers):
    assert machine.parse_list(text) == numbers
