import pytest

from scalebench import machine
from scalebench.resources import Hierarchy, OutOfMemoryWatch, Processor, cpu_quota, memory_bytes
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
