import fcntl
import os

import pytest

from scalebench.launch.lab import quota
from scalebench.launch.lab.quota import NoQuota, Quotas
from scalebench.resources import find_hierarchy

V2 = "cgroup2 {top} cgroup2 rw,nosuid 0 0\n"


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
