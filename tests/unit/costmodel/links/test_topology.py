import json
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.costmodel.links.fitted import NoFit
from scalebench.costmodel.links.nccl_log import merged, read_nccl_log
from scalebench.costmodel.links.topology import LINKS, TOPOLOGIES, load_topology, wire_findings
from scalebench.errors import UsageError
from scalebench.records.measured.rank import NcclWires, NodeLinks
from tests.builders.links.nccl_wire_logs import LOGS, log
from tests.examples import cases

H100 = TOPOLOGIES["dgx-h100"]
GIB = 1 << 30


def test_hierarchical_reduces_inside_first():
    """Two nodes of eight: 2·7/8·D/450 inside, 2·1/2·(D/8)/50 across."""
    found = H100.time("all_reduce", 16, GIB, hierarchical=True)
    across = 2 * 14e-6 + GIB / 8 / 50e9
    assert found.time_s == pytest.approx(14 * 3.4e-6 + 14 / 8 * GIB / 450e9 + across)
    with pytest.raises(NoFit, match="full nodes"):
        H100.time("all_reduce", 12, GIB, hierarchical=True)


@given(st.sampled_from(sorted(TOPOLOGIES)), st.integers(2, 4096), st.integers(1, GIB))
def test_twice_the_bandwidth_is_never_slower(name, world_size, size):
    topology = TOPOLOGIES[name]
    as_sold = topology.time("all_reduce", world_size, size).time_s
    assert topology.faster(2).time("all_reduce", world_size, size).time_s < as_sold


def test_one_rank_sends_nothing_and_unknown_operations_and_names_are_not_guessed():
    found = H100.time("all_reduce", 1, GIB)
    assert (found.low_s, found.time_s, found.high_s) == (0, 0, 0)
    with pytest.raises(NoFit, match="scan"):
        H100.time("scan", 8, GIB)
    with pytest.raises(UsageError, match="dgx-h100"):
        load_topology("dgx-h1000")


def test_a_file_may_name_links_or_describe_them(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'ranks_per_node = 4\ninside = "pcie5"\nlinks_across = 2\n'
        "[across]\nbandwidth_byte_per_s = 1e9\nlatency_s = 2e-5\n"
    )
    found = load_topology(str(path))
    assert (found.inside, found.node_byte_per_s) == (LINKS["pcie5"], 2e9)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(H100.model_dump()))
    assert load_topology(str(path)) == H100


@cases(
    "text, words",
    ('ranks_per_node = 0\ninside = "pcie5"\nacross = "pcie5"', ["line 1", "ranks_per_node"]),
    ('ranks_per_node = 4\ninside = "pcie9"\nacross = "pcie5"', ["inside", "pcie5"]),
    ('ranks_per_node = 4\ninside = "pcie5"', ["across", "required"]),
    ('ranks_per_node = 4\nspeed = 3\ninside = "pcie5"\nacross = "pcie5"', ["line 2", "speed"]),
    ("ranks_per_node = = 4", ["line 1"]),
)
def test_a_file_with_an_error_names_line_and_field(tmp_path, text, words):
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        load_topology(str(path))
    assert all(word in str(error.value) for word in [str(path), *words]), error.value


IB = NodeLinks(host="a", adapters=["mlx5_0:1", "mlx5_1:1"])
NVLINK = NodeLinks(host="a", adapters=[], nvlinks=[(0, 1)], num_gpus=2)
APART = NodeLinks(host="a", adapters=[], nvlinks=[], num_gpus=2)
ELSEWHERE = NodeLinks(host="z", adapters=["mlx5_0:1"], nvlinks=[(0, 1)], num_gpus=8)

GDR = {True: ["GDR"], False: ["no GDR"], None: []}
SAID = [  # log, what the machine says, transports with pairs, adapters and GDR, rules
    ("2.4 sockets", None, ["NET/Socket 0-1 1-0 eth0"], []),
    ("2.4 sockets", IB, ["NET/Socket 0-1 1-0 eth0"], ["sockets"]),
    ("2.4 sockets", ELSEWHERE, ["NET/Socket 0-1 1-0 eth0"], []),
    ("2.7 veth", None, ["NET/Socket 0-1 1-0 ens5 veth75f"], ["interface"]),
    ("2.3 refused", None, [], ["interface"]),
    ("2.17 loopback", None, ["NET/Socket 0-1 lo"], ["interface"]),
    ("2.18 no device", IB, ["P2P 8-15", "NET/Socket 15-6 ens129"], ["sockets"]),
    ("2.21 RoCE without GDR", None, ["NET/IB 0-8 8-0 mlx5_0:1 no GDR"], ["no gdr"]),
    ("2.10 no module", None, ["NET/IB 0-1 1-0 mlx5_0:1 no GDR"], ["no gdr"]),
    (
        "2.21 GDR and NVLink",
        None,
        ["NET/IB 1-3 2-0 mlx5_2:1 mlx5_3:1 GDR", "P2P/NVLink 0-1 1-0"],
        [],
    ),
    ("2.18 one of two adapters", None, ["NET/IB 1-2 3-0 mlx5_0:1 GDR"], ["few adapters"]),
    (
        "RCCL one of four adapters",
        None,
        ["NET/IB 3-4 7-0 mlx5_1:1 GDR", "P2P/XGMI 0-1"],
        ["few adapters"],
    ),
    ("2.8 shared memory", NVLINK, ["SHM 2-3"], []),
    ("2.18 bridges", None, ["P2P/NVLink 0-1", "P2P/PCIe 0-2", "SHM 1-2"], []),
    ("2.19 pod", None, ["SHM 0-1"], []),
    ("2.19 pod", NVLINK, ["SHM 0-1"], ["no nvlink"]),
    ("2.19 pod", APART, ["SHM 0-1"], []),
    ("2.19 pod", ELSEWHERE, ["SHM 0-1"], []),
    ("2.22 P2P disabled", None, ["SHM 0-1"], ["no nvlink"]),
    ("2.20 PCIe", None, ["P2P/PCIe 0-1"], []),
    ("2.20 no topology", NVLINK, ["P2P 0-3"], []),
    ("2.23 Libfabric", None, ["NET/AWS Libfabric 0-1 1 GDR"], []),
    ("2.21 IBext", None, ["NET/IBext_v8 26-33 4 no GDR"], ["no gdr"]),
    ("2.21 merged", None, ["NET/IB 0-1 mlx5_0:1 mlx5_1:1 GDR"], []),
    ("2.27 merged", None, ["NET/IB 0-1 mlx5_0:1 mlx5_1:1 GDR"], []),
    ("2.28 H200", None, ["NET/Socket 0-1 1-0 eth0"], []),
]


def read(text, links=None):
    return read_nccl_log(text.splitlines(), [links] if links else [])


@cases("name, links, transports, rules", *SAID)
def test_the_log_says_which_wires_and_the_rules_name_the_slow_ones(name, links, transports, rules):
    wires = read(LOGS[name], links)
    told = [
        " ".join([one.name, *(f"{a}-{b}" for a, b in one.pairs), *one.adapters, *GDR[one.gdr]])
        for one in wires.transports
    ]
    assert {*told} == {*transports}
    found = wire_findings(wires)
    assert [one.rule for one in found] == rules
    assert all("NCCL_" in one.remedy for one in found)


@cases("name", *sorted(LOGS))
def test_logs_of_single_ranks_say_together_what_one_log_of_all_says(name):
    whole = read(LOGS[name])
    of_process = defaultdict(list)
    for line in LOGS[name].splitlines():
        of_process[line.split(":")[:2][-1]].append(line)
    together = merged([found for lines in of_process.values() if (found := read_nccl_log(lines))])

    def pairs(wires):
        return {pair for one in wires.transports for pair in one.pairs}

    assert pairs(together) == pairs(whole)
    assert {node.host: node.num_ranks for node in together.nodes} == {
        node.host: node.num_ranks for node in whole.nodes
    }


def test_ranks_of_a_second_communicator_are_not_taken_for_those_of_the_first():
    """Both have a rank 1, on different GPUs: only the first is joined to rank 0 by NVLink."""
    second = log("+ PCI[24.0] - GPU/41000 (1)\nChannel 00/0 : 0[0] -> 1[1] via P2P/CUMEM")
    first = LOGS["2.18 bridges"]
    assert {one.name for one in read(first).transports} >= {"P2P/NVLink"}
    wires = read(first + second)
    assert wires.transports[0].name == "P2P"


def test_other_text_is_no_log_and_a_log_without_channels_names_none():
    assert read("NCCL_DEBUG=INFO torchrun train.py\nstep 1: 2.3 s\n") is None
    empty = read(log("Using network Socket"))
    assert empty.transports == [] and wire_findings(empty) == []
    assert NcclWires.model_validate_json(empty.model_dump_json()) == empty
