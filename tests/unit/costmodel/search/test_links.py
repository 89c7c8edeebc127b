"""What groups take on nominal and on calibrated links, by hand."""

import numpy as np
import pytest

from scalebench.costmodel.links.times import LinkTime, NoFit
from scalebench.costmodel.links.topology import Link, Topology
from scalebench.costmodel.search.links import CalibratedLinks, NominalLinks, by_number

SIZE = 300.0


def nominal(inside_s: float = 1.0, inside_rate: float = 50.0) -> NominalLinks:
    """Return nodes of 6 ranks; a node has 3 links of 12 byte/s, so a rank's share is 6 byte/s."""
    inside = Link(latency_s=inside_s, bandwidth_byte_per_s=inside_rate, source="a test")
    across = Link(latency_s=10.0, bandwidth_byte_per_s=12.0, source="a test")
    return NominalLinks(
        Topology(ranks_per_node=6, inside=inside, across=across, links_across=3), "a test"
    )


def asked(links: NominalLinks, op: str, ranks: int, near: int) -> float:
    return float(links.time(op, np.array([ranks]), np.array([near]), np.array([SIZE]))[0])


@pytest.mark.parametrize(
    ("op", "ranks", "near", "expected"),
    [
        ("all_reduce", 3, 3, 4 * 1 + 4 / 3 * 300 / 50),
        ("all_gather", 3, 3, 2 * 1 + 2 / 3 * 300 / 50),
        ("reduce_scatter", 3, 3, 2 * 1 + 2 / 3 * 300 / 50),
        ("all_to_all", 3, 3, 2 * 1 + 2 / 3 * 300 / 50),
        ("send_recv", 2, 2, 1 + 300 / 50),
        ("all_reduce", 2, 2, 2 * 1 + 300 / 50),
        # One rank on each node: a sixth of the node's 36 byte/s.
        ("all_reduce", 3, 1, 4 * 10 + 4 / 3 * 300 / 6),
        ("send_recv", 2, 1, 10 + 300 / 6),
        # Two on each node, which do not divide five: a ring with two sixths of the network.
        ("all_reduce", 5, 2, 8 * 10 + 8 / 5 * 300 / 12),
        # Two on each of three nodes: two messages inside, four across with 1/2 of the bytes.
        ("all_reduce", 6, 2, 2 * 1 + 300 / 50 + 4 * 10 + 4 / 3 / 2 * 300 / 6),
        ("all_gather", 6, 2, (2 * 1 + 300 / 50 + 4 * 10 + 4 / 3 / 2 * 300 / 6) / 2),
        ("reduce_scatter", 6, 2, (2 * 1 + 300 / 50 + 4 * 10 + 4 / 3 / 2 * 300 / 6) / 2),
        ("all_to_all", 6, 2, 5 * 10 + 5 / 6 * 300 / 12),  # has no levels
        # Two full nodes: 10 messages inside with 10/6 of the bytes, 2 across with 1/6.
        ("all_reduce", 12, 6, 10 * 1 + 10 / 6 * 300 / 50 + 2 * 10 + 1 / 6 * 300 / 6),
        ("all_reduce", 1, 1, 0.0),
        ("send_recv", 1, 1, 0.0),
    ],
)
def test_nominal_links_by_hand(op: str, ranks: int, near: int, expected: float) -> None:
    assert asked(nominal(), op, ranks, near) == pytest.approx(expected)


def test_a_ring_counts_where_levels_are_slower() -> None:
    """Two messages of 100 s inside the nodes."""
    found = asked(nominal(inside_s=100.0), "all_reduce", 6, 2)
    assert found == pytest.approx(10 * 10 + 10 / 6 * 300 / 12)


def test_a_slow_link_inside_limits_what_reaches_the_network() -> None:
    slow = nominal(inside_rate=5.0)
    assert asked(slow, "all_reduce", 5, 2) == pytest.approx(8 * 10 + 8 / 5 * 300 / 5)
    levels = 2 * 1 + 300 / 5 + 4 * 10 + 4 / 3 / 2 * 300 / 5
    assert asked(slow, "all_reduce", 6, 2) == pytest.approx(levels)


def test_many_groups_are_answered_at_once_each_with_its_own_size() -> None:
    links = nominal()
    ranks, near = np.array([3, 1, 3, 6]), np.array([3, 1, 1, 2])
    found = links.time("all_gather", ranks, near, np.array([300.0, 300.0, 600.0, 0.0]))
    expected = [2 + 2 / 3 * 6, 0, 2 * 10 + 2 / 3 * 600 / 6, (2 + 40) / 2]
    assert found == pytest.approx(expected)
    assert (links.ranks_per_node, links.told) == (6, "a test")


def test_each_number_is_asked_for_once() -> None:
    seen = []

    def answer(number: int) -> tuple[float, float]:
        seen.append(number)
        return number, 10.0 * number

    found = by_number(np.array([5, 0, 5, 3]), answer)
    assert found.tolist() == [[5, 50], [0, 0], [5, 50], [3, 30]]
    assert seen == [0, 3, 5]


class Measured:
    """A calibration of some operations: 1000·N s, and a second for each byte."""

    def __init__(self, *known: str) -> None:
        self.known = known
        self.asked: list[tuple[str, int, int]] = []

    def time(self, op: str, world_size: int, size_bytes: int) -> LinkTime:
        if world_size == 1:
            return LinkTime(0.0, 0.0, 0.0, ())
        if op not in self.known:
            raise NoFit(f"no {op} was calibrated")
        self.asked.append((op, world_size, size_bytes))
        return LinkTime(1000.0 * world_size + size_bytes, 0.0, 0.0, ())


def calibrated(op: str, *known: str, ranks: list[int], sizes: list[float]) -> list[float]:
    links = CalibratedLinks(Measured(*known), "a test")  # type: ignore[arg-type]
    near = np.ones(len(ranks), dtype=np.int64)
    return links.time(op, np.array(ranks), near, np.array(sizes)).tolist()


def test_a_calibrated_operation_takes_what_was_measured_at_whole_bytes() -> None:
    found = calibrated(
        "all_reduce", "all_reduce", ranks=[3, 2, 1, 3, 3], sizes=[70.4, 5.6, 90.0, 0.2, 70.4]
    )
    assert found == [3070, 2006, 0, 3001, 3070]


def test_equal_groups_are_asked_for_once() -> None:
    model = Measured("all_reduce")
    sizes, ranks = np.array([7.0, 9.0, 7.0]), np.array([3, 3, 3])
    CalibratedLinks(model, "").time("all_reduce", ranks, ranks, sizes)  # type: ignore[arg-type]
    assert [size for op, n, size in model.asked if n == 3] == [7, 9]


@pytest.mark.parametrize(
    ("op", "known", "factor"),
    [
        ("all_gather", "all_reduce", 1 / 2),
        ("reduce_scatter", "all_reduce", 1 / 2),
        ("all_to_all", "all_gather", 1.0),
        ("all_to_all", "all_reduce", 1 / 2),  # its relative's relative
        ("send_recv", "all_gather", 3 / 2),  # (N−1)/N of the bytes of a gather pass a link
        ("send_recv", "all_reduce", 3 / 4),
        ("send_recv_ring", "send_recv", 1.0),
    ],
)
def test_what_was_not_calibrated_has_the_link_of_its_relative(
    op: str, known: str, factor: float
) -> None:
    """In a group of three, with the relative's size at which as many bytes pass the link."""
    found = calibrated(op, known, ranks=[3, 1, 3], sizes=[600, 600, 1200])
    assert found == pytest.approx([3000 + factor * 600, 0, 3000 + factor * 1200])


def test_a_relative_is_asked_for_one_byte_at_least_and_for_groups_of_two() -> None:
    assert calibrated("all_gather", "all_reduce", ranks=[2, 3], sizes=[1, 1]) == [2001, 3001]
    assert calibrated("send_recv", "all_gather", ranks=[2], sizes=[10]) == [2020]


def test_the_operation_that_was_asked_for_is_named_where_no_relative_was_calibrated() -> None:
    with pytest.raises(NoFit, match="no all_to_all was calibrated"):
        calibrated("all_to_all", ranks=[3], sizes=[1])
    with pytest.raises(NoFit, match="no all_reduce was calibrated"):
        calibrated("all_reduce", "all_gather", ranks=[3], sizes=[1])


def test_calibrated_ranks_have_nodes_of_their_own() -> None:
    assert CalibratedLinks(Measured(), "a test").ranks_per_node == 1  # type: ignore[arg-type]
