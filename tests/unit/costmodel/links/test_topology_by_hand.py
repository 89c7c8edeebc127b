"""What links and machines are, figure by figure, and times over uneven topologies."""

import json

import pytest
from pydantic import ValidationError

from scalebench.costmodel.links.times import LinkTime, NoFit
from scalebench.costmodel.links.topology import (
    LINKS,
    TOPOLOGIES,
    Link,
    Topology,
    _line_of,
    load_topology,
)
from scalebench.errors import UsageError

RATES_GB_PER_S = {
    "nvlink2": 150,
    "nvlink3": 300,
    "nvlink4": 450,
    "nvlink5": 900,
    "pcie3": 15.75,
    "pcie4": 31.5,
    "pcie5": 63,
    "infiniband-edr": 12.5,
    "infiniband-hdr": 25,
    "infiniband-ndr": 50,
    "infiniband-xdr": 100,
    "ethernet-10g": 1.25,
    "ethernet-25g": 3.125,
    "ethernet-100g": 12.5,
    "ethernet-200g": 25,
    "ethernet-400g": 50,
}
"""One direction, as the data sheets have them."""

LATENCIES_S = {"nvlink": 3.4e-6, "pcie": 5.7e-6, "infiniband": 14e-6, "ethernet": 14e-6}
"""Of NCCL's tuning table, protocol Simple."""

MINE = Topology(
    ranks_per_node=3,
    inside=Link(bandwidth_byte_per_s=7e9, latency_s=2e-6),
    across=Link(bandwidth_byte_per_s=1e9, latency_s=9e-6),
    links_across=2,
)


def test_every_link_carries_what_its_data_sheet_says():
    assert set(LINKS) == set(RATES_GB_PER_S)
    for name, link in LINKS.items():
        assert link.bandwidth_byte_per_s == pytest.approx(1e9 * RATES_GB_PER_S[name], rel=1e-12)
        (latency,) = (s for kind, s in LATENCIES_S.items() if name.startswith(kind))
        assert link.latency_s == latency


@pytest.mark.parametrize(
    ("name", "ranks", "inside", "across", "links"),
    [
        ("dgx-a100", 8, "nvlink3", "infiniband-hdr", 8),
        ("dgx-h100", 8, "nvlink4", "infiniband-ndr", 8),
        ("dgx-b200", 8, "nvlink5", "infiniband-ndr", 8),
        ("pcie4-8x-ethernet-100g", 8, "pcie4", "ethernet-100g", 1),
        ("pcie4-4x-ethernet-25g", 4, "pcie4", "ethernet-25g", 1),
    ],
)
def test_machines_are_as_sold(name, ranks, inside, across, links):
    found = TOPOLOGIES[name]
    assert (found.ranks_per_node, found.links_across) == (ranks, links)
    assert (found.inside, found.across) == (LINKS[inside], LINKS[across])
    assert load_topology(name) is found


def test_a_full_node_uses_its_inside_and_one_rank_more_the_slower_of_both():
    inside = MINE.time("all_reduce", 3, 6000)
    assert inside == LinkTime(inside.time_s, inside.time_s, inside.time_s, ())
    assert inside.time_s == pytest.approx(4 * 2e-6 + 4 / 3 * 6000 / 7e9)
    two = MINE.time("all_reduce", 2, 6000)
    assert two.time_s == pytest.approx(2 * 2e-6 + 6000 / 7e9)
    across = MINE.time("all_reduce", 4, 6000)
    assert across.time_s == pytest.approx(6 * 9e-6 + 6 / 4 * 6000 / 2e9)
    slow_inside = MINE.model_copy(update={"inside": Link(bandwidth_byte_per_s=5e8, latency_s=2e-6)})
    assert slow_inside.time("all_reduce", 4, 6000).time_s == pytest.approx(
        6 * 9e-6 + 6 / 4 * 6000 / 5e8
    )
    assert MINE.time("all_reduce", 1, 6000) == LinkTime(0.0, 0.0, 0.0, ())


def test_all_to_all_is_pairwise_and_not_around_a_ring():
    found = MINE.time("all_to_all", 6, 6000)
    assert found.time_s == pytest.approx(5 * 9e-6 + 5 / 6 * 6000 / 2e9)


def test_an_all_reduce_by_levels_needs_full_nodes():
    """Two nodes of three: each rank has two thirds of a link."""
    found = MINE.time("all_reduce", 6, 6000, hierarchical=True)
    inside = 2 * 2 * 2e-6 + 2 * 2 / 3 * 6000 / 7e9
    across = 2 * 9e-6 + 1 * (6000 / 3) / (2e9 / 3)
    assert found.time_s == pytest.approx(inside + across)
    gather = MINE.time("all_gather", 6, 6000, hierarchical=True)
    assert gather.time_s == pytest.approx(5 * 9e-6 + 5 / 6 * 6000 / 2e9)
    assert MINE.time("all_reduce", 3, 6000, hierarchical=True) == MINE.time("all_reduce", 3, 6000)
    with pytest.raises(NoFit, match="7 ranks do not fill nodes of 3"):
        MINE.time("all_reduce", 7, 6000, hierarchical=True)


def test_times_the_bandwidth_of_both_links_and_nothing_else():
    faster = MINE.faster(2.5)
    assert faster.inside == Link(bandwidth_byte_per_s=17.5e9, latency_s=2e-6)
    assert faster.across == Link(bandwidth_byte_per_s=2.5e9, latency_s=9e-6)
    assert (faster.ranks_per_node, faster.links_across) == (3, 2)
    assert MINE.inside.bandwidth_byte_per_s == 7e9


@pytest.mark.parametrize(
    "changes",
    [
        {"ranks_per_node": 0},
        {"links_across": 0},
        {"inside": {"bandwidth_byte_per_s": 0, "latency_s": 1e-6}},
        {"across": {"bandwidth_byte_per_s": 1e9, "latency_s": -1e-9}},
    ],
)
def test_what_no_machine_can_be_is_refused(changes):
    with pytest.raises(ValidationError):
        Topology.model_validate(MINE.model_dump() | changes)


def test_the_least_that_a_machine_can_be():
    least = {"bandwidth_byte_per_s": 0.5, "latency_s": 0}
    found = Topology(ranks_per_node=1, inside=least, across=least)
    assert (found.ranks_per_node, found.links_across, found.inside.latency_s) == (1, 1, 0)


def written(tmp_path, text, name="mine.toml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def error_of(path):
    with pytest.raises(UsageError) as caught:
        load_topology(str(path))
    return str(caught.value)


def test_the_error_of_a_file_has_its_line_and_the_field(tmp_path):
    path = written(tmp_path, 'inside = "pcie5"\nacross = "pcie5"\nranks_per_node = "many"\n')
    assert error_of(path).startswith(f"{path} (line 3): ranks_per_node: ")
    path = written(tmp_path, 'inside = "pcie5"\nranks_per_node = 3\n')
    assert error_of(path) == f"{path}: across: Field required."
    path = written(
        tmp_path,
        'inside = "pcie5"\nranks_per_node = 3\n[across]\nlatency_s = 1\nbandwidth_byte_per_s = 0\n',
    )
    assert error_of(path).startswith(f"{path} (line 5): across.bandwidth_byte_per_s: ")


def test_a_file_that_holds_no_object_or_no_text_is_none(tmp_path):
    path = written(tmp_path, "[1, 2]", "mine.json")
    assert error_of(path).startswith(f"{path} is not a topology")
    path = written(tmp_path, "{", "mine.json")
    assert error_of(path).startswith(f"{path} cannot be read as a topology")
    path = written(tmp_path, json.dumps({"ranks_per_node": 3, "inside": "x", "across": "pcie5"}))
    assert "cannot be read as a topology" in error_of(path)  # JSON in a file of another name


@pytest.mark.parametrize("field", ["inside", "across"])
def test_an_unknown_link_in_a_file_lists_the_known_ones(tmp_path, field):
    links = {"inside": "pcie5", "across": "pcie5"} | {field: "pcie9"}
    path = written(tmp_path, json.dumps({"ranks_per_node": 3, **links}), "mine.json")
    message = error_of(path)
    assert f"There is no link in {path}: {field} 'pcie9'" in message
    assert "nvlink4" in message


def test_the_first_line_that_names_a_field_is_found(tmp_path):
    path = written(tmp_path, "a = 1\nb = 2\nb = 3\n")
    assert [_line_of(path, field) for field in ("a", "b", "c")] == [1, 2, None]
