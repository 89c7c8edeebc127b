"""Where the ranks of a size are in a world of several machines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench import machine
from scalebench.launch.external.nodes import Registration, world_of
from scalebench.session.plan import Machine, Request, make_plan
from scalebench.session.suites.files import load_suites
from scalebench.spec.world import Node, World


def world(*ranks_per_node: int, cores: int = 8, gpus: int = 0) -> World:
    nodes, first = [], 0
    for number, count in enumerate(ranks_per_node):
        ranks = tuple(range(first, first + count))
        nodes.append(Node(host=f"n{number}", ranks=ranks, num_cores=cores, num_gpus=gpus))
        first += count
    return World(launcher="torchrun", nodes=tuple(nodes))


shapes = st.lists(st.integers(1, 6), min_size=1, max_size=5)


@given(shapes)
def test_sizes_fill_one_node_after_the_other(counts: list[int]) -> None:
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
def test_up_to_its_capacity_every_rank_has_a_core_to_itself(
    counts: list[int], cores: int, gpus: int
) -> None:
    there = world(*counts, cores=cores, gpus=gpus)
    for on_gpus, each in ((False, cores), (True, gpus)):
        capacity = there.capacity(on_gpus)
        fits = [n for n in range(1, there.size + 1) if max(there.placed(n)) <= each]
        assert capacity == max(fits, default=0)


def test_ranks_dealt_out_by_turns_are_put_in_order() -> None:
    registrations = {
        rank: Registration(
            host=f"n{rank % 2}", pid=rank, affinity=(rank // 2,), cores=(rank // 2,), torch="2"
        )
        for rank in range(4)
    }
    one, two = {"devices": [{"uuid": "a"}]}, {"devices": [{"uuid": "b"}, {"uuid": "c"}]}
    there = world_of("srun", registrations, {0: one, 1: two, 2: two, 3: two})
    assert there.order == (0, 2, 1, 3)
    assert [(n.num_cores, n.num_gpus) for n in there.nodes] == [(2, 3), (2, 2)]
    assert there.places()[1] == {"host": "n1", "local_rank": 0}
    assert there.places()[2] == {"host": "n0", "local_rank": 1}


def test_the_plan_of_a_world() -> None:
    here = Machine(num_gpus=0, num_cores=4, world=world(2, 2, cores=4))
    plan = make_plan(
        Request(world_sizes=(2, 4, 8), batch_size=16, selection="static"),
        load_suites(["ddp"]),
        here,
    )
    assert plan.spec.launcher == "torchrun"
    assert plan.spec.threads == 2
    reasons = {cell.world_size: cell.skip_reason for cell in plan.cells}
    assert reasons[2] is None and reasons[4] is None
    assert reasons[8] == "8 ranks are more than the 4 that torchrun started"
    line = "4 ranks on 2 nodes (2 x 2), started by torchrun"
    assert any(line in notice and "N = 4: 2+2" in notice for notice in plan.notices)
    assert not any("oversubscribed" in notice for notice in plan.notices)


def test_only_the_shape_of_a_world_decides_whether_runs_compare() -> None:
    survey = {"torch": "2", "devices": []}
    ours = machine.fingerprint(survey, world(2, 2))
    renamed = World(
        launcher="srun",
        nodes=tuple(n.model_copy(update={"host": f"x{n.host}"}) for n in world(2, 2).nodes),
    )
    assert machine.differences(ours, machine.fingerprint(survey, renamed)) == []
    for other in (world(4), world(2, 2, cores=2), None):
        told = machine.differences(ours, machine.fingerprint(survey, other))
        assert told == ["number of nodes, ranks or cores"]
