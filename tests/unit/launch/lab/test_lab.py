import fcntl
import os

import pytest

from scalebench.cgroups import find_hierarchy
from scalebench.launch.lab import quota
from scalebench.launch.lab.quota import NoQuota, Quotas

V1 = """\
tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup {top}/memory cgroup rw,memory 0 0
cgroup {top}/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0
cgroup2 {top}/unified cgroup2 rw 0 0
"""
V2 = "cgroup2 {top} cgroup2 rw,nosuid 0 0\n"


@pytest.fixture
def v2(tmp_path):
    """A tree as systemd makes it for a user: CPU delegated down to app.slice."""
    own = tmp_path / "user.slice" / "app.slice" / "run.scope"
    own.mkdir(parents=True)
    for folder, controllers in (
        (tmp_path, "cpu memory"),
        (tmp_path / "user.slice", "cpu"),
        (own.parent, "cpu pids"),
        (own, ""),
    ):
        (folder / "cgroup.subtree_control").write_text(controllers)
    return tmp_path, own


def test_the_cpu_controller_of_version_1_is_found_among_others(tmp_path):
    (tmp_path / "cpu,cpuacct" / "job").mkdir(parents=True)
    memberships = "4:memory:/other\n2:cpu,cpuacct:/job\n0::/\n"
    found = find_hierarchy(V1.format(top=tmp_path), memberships)
    assert (found.version, found.own) == (1, tmp_path / "cpu,cpuacct" / "job")
    assert list(found.candidates()) == [found.own, tmp_path / "cpu,cpuacct"]


def test_groups_of_version_2_are_made_where_the_controller_is_delegated(v2):
    top, own = v2
    quotas = Quotas(
        (0.5, 0.2), find_hierarchy(V2.format(top=top), "0::/user.slice/app.slice/run.scope")
    )
    assert quotas.root.parent == own.parent  # its own group has no controller to hand on
    assert quotas.root.name.startswith(f"scalebench-lab-{os.getpid()}-")
    assert (quotas.root / "cgroup.subtree_control").read_text() == "+cpu"
    assert (quotas.root / "rank1" / "cpu.max").read_text() == "1000 5000"
    assert quotas.members[1] == quotas.root / "rank1" / "cgroup.procs"
    os.close(quotas._lock)


def test_nothing_is_delegated(tmp_path):
    (tmp_path / "cgroup.subtree_control").write_text("memory")
    with pytest.raises(NoQuota, match="no CPU controller is delegated"):
        Quotas((0.2,), find_hierarchy(V2.format(top=tmp_path), "0::/"))


def test_only_groups_that_nobody_holds_are_removed(tmp_path):
    for name in ("scalebench-lab-1-aa", "scalebench-lab-2-bb", "other"):
        (tmp_path / name / "rank0").mkdir(parents=True)
    held = os.open(tmp_path / "scalebench-lab-2-bb", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    quota.remove_abandoned(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "scalebench-lab-2-bb"]
    os.close(held)
    quota.remove_abandoned(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["other"]
