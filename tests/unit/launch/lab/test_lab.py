import fcntl
import os
from pathlib import Path

import pytest

from scalebench.cgroups import find_hierarchy
from scalebench.launch.lab import quota
from scalebench.launch.lab.quota import NoQuota, Quotas, quota_us
from scalebench.launch.lab.topology import burst_bytes, host_commands, switch_commands
from scalebench.spec.virtual_hosts import VirtualHosts

V1 = """\
tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup {top}/memory cgroup rw,memory 0 0
cgroup {top}/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0
cgroup2 {top}/unified cgroup2 rw 0 0
"""
V2 = "cgroup2 {top} cgroup2 rw,nosuid 0 0\n"


@pytest.mark.parametrize(
    ("share", "asked"),
    [(0.2, (1000, 5000)), (0.5, (2500, 5000)), (2, (10000, 5000)), (0.1, (1000, 10000))],
)
def test_the_period_is_short_and_the_quota_at_least_what_the_kernel_takes(share, asked):
    assert quota_us(share) == asked


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


def switch(num_hosts, quiet=False, **fields):
    files = [Path(f"/proc/1/fd/{i}") for i in range(num_hosts)]
    return switch_commands(VirtualHosts(**fields), num_hosts, files, quiet)


def test_every_link_is_shaped_at_both_ends_with_its_own_rate():
    rates = (200_000_000, 50_000_000)
    commands = switch(2, link_bit_per_s=rates)
    assert [line.split(" limit")[0] for line in commands.tc] == [
        "qdisc add dev h0 root tbf rate 200000000bit burst 32000",
        "qdisc add dev h1 root tbf rate 50000000bit burst 32000",
    ]
    (shaped,) = host_commands(1, rates[1], quiet=False).tc
    assert shaped.startswith("qdisc add dev eth0 root tbf rate 50000000bit ")


def test_racks_have_bridges_of_their_own_and_shaped_links_to_one_more():
    commands = switch(4, link_bit_per_s=(10**8,), hosts_per_rack=2, inter_bit_per_s=10**7)
    bridges = [line.split()[2] for line in commands.ip if "type bridge" in line]
    assert bridges == ["rack0", "rack1", "core"]
    between = [line.split()[3] for line in commands.tc if "rate 10000000bit" in line]
    assert between == ["up0", "down0", "up1", "down1"]
    masters = [line.split()[2:5] for line in commands.ip if line.startswith("link set h")]
    assert [(port, bridge) for port, _, bridge in masters] == [
        ("h0", "rack0"),
        ("h1", "rack0"),
        ("h2", "rack1"),
        ("h3", "rack1"),
    ]


def test_a_faster_link_lets_more_through_at_once_and_a_slow_one_some_frames():
    assert burst_bytes(10**6) == burst_bytes(10**8) == 32_000
    assert burst_bytes(10**9) == 62_500
