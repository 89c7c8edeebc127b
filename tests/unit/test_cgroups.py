"""Limits by cgroup, in trees as the kernel shows them."""

import os
import subprocess
import sys

import pytest

from scalebench.cgroups import Hierarchy, OutOfMemoryWatch, cpu_quota, memory_bytes, own_hierarchy


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


def test_what_was_killed_for_memory_is_told_with_the_limit_of_the_group_above(v2):
    write(v2.own, memory__events="oom 3\noom_kill 3")
    watch = OutOfMemoryWatch(v2)
    assert watch.killed() is None
    write(v2.own, memory__events="oom 4\noom_kill 4")
    assert f"limit is 4.00 GB ({v2.top / 'batch' / 'memory.max'})" in watch.killed()


def test_version_1_counts_kills_elsewhere(tmp_path):
    write(tmp_path, memory__oom_control="under_oom 0\noom_kill 0", memory__limit_in_bytes="9000000")
    watch = OutOfMemoryWatch(Hierarchy(1, tmp_path, tmp_path))
    write(tmp_path, memory__oom_control="under_oom 0\noom_kill 2")
    assert "limit is 9.00 MB" in watch.killed()


HUNGRY = """
import subprocess, sys
from scalebench.cgroups import OutOfMemoryWatch
watch = OutOfMemoryWatch()
child = subprocess.run([sys.executable, "-c", "bytearray(1 << 30)"])
print(child.returncode, watch.killed())
"""


def test_a_real_group_tells_what_its_limit_has_killed():
    hierarchy = own_hierarchy("memory")
    try:
        assert hierarchy is not None
        group = hierarchy.top / f"scalebench-test-{os.getpid()}"
        group.mkdir()
    except (AssertionError, OSError) as error:
        pytest.skip(f"cannot make a group with a limit of memory here: {error}")
    limit = group / ("memory.max" if hierarchy.version == 2 else "memory.limit_in_bytes")
    enter = f'echo $$ > "{group}/cgroup.procs" && exec "$@"'
    try:
        if not limit.exists():
            pytest.skip("the controller of memory is not handed on to new groups here")
        limit.write_text(str(128 << 20))
        done = subprocess.run(
            ["sh", "-c", enter, "sh", sys.executable, "-c", HUNGRY], capture_output=True, text=True
        )
    finally:
        group.rmdir()
    assert done.stdout.startswith("-9 the kernel's out-of-memory killer"), done.stdout + done.stderr
    assert f"limit is 134 MB ({limit})" in done.stdout
