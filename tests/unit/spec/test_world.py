"""Where the ranks of a size are in a world of several machines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.spec.world import Node, World


def world(*ranks_per_node, cores=8, gpus=0):
    nodes, first = [], 0
    for number, count in enumerate(ranks_per_node):
        ranks = tuple(range(first, first + count))
        nodes.append(Node(host=f"n{number}", ranks=ranks, num_cores=cores, num_gpus=gpus))
        first += count
    return World(launcher="torchrun", nodes=tuple(nodes))


shapes = st.lists(st.integers(1, 6), min_size=1, max_size=5)


@given(shapes)
def test_sizes_fill_one_node_after_the_other(counts):
    there = world(*counts)
    assert sorted(there.order) == list(range(there.size))
    for size in range(1, there.size + 1):
        placed = there.placed(size)
        assert sum(placed) == size
        assert placed[:-1] == counts[: len(placed) - 1]
        assert 0 < placed[-1] <= counts[len(placed) - 1]
    with pytest.raises(ValueError):
        there.placed(there.size + 1)


@given(shapes, st.integers(1, 4), st.integers(0, 4))
def test_up_to_its_capacity_every_rank_has_a_core_to_itself(counts, cores, gpus):
    there = world(*counts, cores=cores, gpus=gpus)
    for on_gpus, each in ((False, cores), (True, gpus)):
        capacity = there.capacity(on_gpus)
        fits = [n for n in range(1, there.size + 1) if max(there.placed(n)) <= each]
        assert capacity == max(fits, default=0)
