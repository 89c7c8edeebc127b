from pathlib import Path

from scalebench.launch.lab.topology import burst_bytes, host_commands, switch_commands
from scalebench.spec.virtual_hosts import VirtualHosts


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
