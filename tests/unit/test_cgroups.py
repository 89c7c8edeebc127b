"""Limits by cgroup, in trees as the kernel shows them."""

import pytest

from scalebench.cgroups import Hierarchy, cpu_quota, find_hierarchy, memory_bytes


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


def test_the_tightest_limit_counts(v2):
    write(v2.own, cpu__max="50000 100000", memory__max="1000000000")
    assert (cpu_quota(v2), memory_bytes(v2)) == (0.5, 1_000_000_000)


def test_version_1_has_two_files_and_writes_no_limit_as_a_number(tmp_path):
    cpu, memory = tmp_path / "cpu", tmp_path / "memory"
    write(cpu, cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    write(cpu / "job", cpu__cfs_quota_us="100000", cpu__cfs_period_us="50000")
    write(memory, memory__limit_in_bytes="9223372036854771712")
    assert cpu_quota(Hierarchy(1, cpu / "job", cpu)) == 2.0
    assert cpu_quota(Hierarchy(1, cpu, cpu)) is None
    assert memory_bytes(Hierarchy(1, memory, memory)) is None
    write(memory, memory__limit_in_bytes="2000000000")
    assert memory_bytes(Hierarchy(1, memory, memory)) == 2_000_000_000


@pytest.mark.parametrize("text", ["", "nonsense", "0 0", "max max", "-1 100000"])
def test_what_cannot_be_read_is_no_limit(tmp_path, text):
    write(tmp_path, cpu__max=text, memory__max=text)
    found = Hierarchy(2, tmp_path, tmp_path)
    assert cpu_quota(found) is None
    assert memory_bytes(found) is None or text == "0 0"


def test_no_cgroup_is_no_limit():
    assert cpu_quota(None) is memory_bytes(None) is None


def test_each_controller_of_version_1_has_its_own_hierarchy(tmp_path):
    (tmp_path / "memory" / "job").mkdir(parents=True)
    mounts = (
        f"cgroup {tmp_path}/cpu cgroup rw,cpu 0 0\ncgroup {tmp_path}/memory cgroup rw,memory 0 0\n"
    )
    memberships = "3:memory:/job\n2:cpu:/\n"
    assert find_hierarchy(mounts, memberships, "memory").own == tmp_path / "memory" / "job"
    assert find_hierarchy(mounts, memberships, "cpu").own == tmp_path / "cpu"
