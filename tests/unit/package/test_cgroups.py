"""Limits by cgroup, in trees as the kernel shows them."""

import pytest

from scalebench.resources import Hierarchy, OutOfMemoryWatch, cpu_quota, memory_bytes


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
