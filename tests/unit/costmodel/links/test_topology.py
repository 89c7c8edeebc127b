"""Machines by name or from a file, and what their links would take by the laws."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.costmodel.links.times import NoFit
from scalebench.costmodel.links.topology import LINKS, TOPOLOGIES, load_topology
from scalebench.errors import UsageError

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


def test_one_rank_sends_nothing_and_unknown_operations_are_not_guessed():
    found = H100.time("all_reduce", 1, GIB)
    assert (found.low_s, found.time_s, found.high_s) == (0, 0, 0)
    with pytest.raises(NoFit, match="scan"):
        H100.time("scan", 8, GIB)


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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('ranks_per_node = 0\ninside = "pcie5"\nacross = "pcie5"', ["line 1", "ranks_per_node"]),
        ('ranks_per_node = 4\ninside = "pcie9"\nacross = "pcie5"', ["inside", "pcie5"]),
        ('ranks_per_node = 4\ninside = "pcie5"', ["across", "required"]),
        ('ranks_per_node = 4\nspeed = 3\ninside = "pcie5"\nacross = "pcie5"', ["line 2", "speed"]),
        ("ranks_per_node = = 4", ["line 1"]),
    ],
)
def test_a_file_with_an_error_names_line_and_field(tmp_path, text, words):
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        load_topology(str(path))
    assert all(word in str(error.value) for word in [str(path), *words]), error.value


def test_an_unknown_name_lists_the_valid_ones():
    with pytest.raises(UsageError, match="dgx-h100"):
        load_topology("dgx-h1000")
