"""What ranks play of a step, and how much more its messages took than the link says."""

import pytest

from scalebench.costmodel.links.times import LinkTime, NoFit
from scalebench.costmodel.rehearsed_step import (
    longer_than_replayed_s,
    rehearsal_of_step,
    stalled_of,
)
from scalebench.costmodel.replay import CommRequest
from scalebench.costmodel.step import StepShape
from scalebench.records.probes import RehearsedStep
from scalebench.spec import Ddp, Mesh

HIDDEN = CommRequest("all_reduce", 1000, 0.002, 0.010)
AT_ONCE = CommRequest("all_gather", 500, 0.012, 0.012)


def shape(*requests: CommRequest) -> StepShape:
    return StepShape(requests, 0.010, 0.004, 8)


def link(op: str, num_ranks: int, size_bytes: int) -> LinkTime:
    """3 us a byte, whatever the operation."""
    return LinkTime(3e-6 * size_bytes, 0.0, 0.0, (num_ranks,))


def test_what_is_played_is_the_shape_of_the_step() -> None:
    plan = rehearsal_of_step(shape(HIDDEN, AT_ONCE), Ddp(), 2)
    assert plan.computing_s == pytest.approx(0.014)
    told = [(o.op, o.size_bytes, o.ready_s, o.needed_s) for o in plan.operations]
    assert told == [tuple(HIDDEN)[:4], tuple(AT_ONCE)[:4]]


@pytest.mark.parametrize(
    ("requests", "told"),
    [
        ((), "nothing is sent"),
        ((HIDDEN._replace(num_ranks=2, axis="data"),), "meshes alone"),
        ((HIDDEN._replace(op="coalesced"),), "no collective|not all"),
    ],
)
def test_what_cannot_be_played_is_said(requests: tuple[CommRequest, ...], told: str) -> None:
    with pytest.raises(NoFit, match=told):
        rehearsal_of_step(shape(*requests), Ddp(), 4)


MESH = Mesh(shard=4, tensor=2)
ALONG_TENSOR = AT_ONCE._replace(op="all_reduce", num_ranks=2, axis="tensor")
ALONG_SHARD = AT_ONCE._replace(num_ranks=4, axis="shard")


def test_groups_of_a_mesh_play_by_themselves() -> None:
    requests = (ALONG_TENSOR, ALONG_SHARD, AT_ONCE._replace(num_ranks=8), AT_ONCE)
    along_tensor, along_shard, *among_all = rehearsal_of_step(shape(*requests), MESH, 8).operations
    assert along_tensor.groups == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert along_shard.groups == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert [one.groups for one in among_all] == [None, None]
    assert [one.num_ranks for one in (along_tensor, along_shard, *among_all)] == [2, 4, None, None]


@pytest.mark.parametrize(
    ("request_", "strategy"),
    [
        (ALONG_TENSOR._replace(num_ranks=4), MESH),
        (ALONG_TENSOR._replace(axis=None), MESH),
        (ALONG_TENSOR._replace(op="broadcast"), MESH),
        (ALONG_TENSOR._replace(axis="data"), Mesh(data=None, expert=2)),
    ],
)
def test_groups_that_no_mesh_has_are_not_played(request_: CommRequest, strategy: Mesh) -> None:
    with pytest.raises(NoFit):
        rehearsal_of_step(shape(request_), strategy, 8)


def test_the_replay_of_a_group_has_the_link_of_so_many_ranks() -> None:
    plan = rehearsal_of_step(shape(ALONG_TENSOR, ALONG_SHARD, AT_ONCE), MESH, 8)
    played = RehearsedStep(suite="s", case="c", world_size=8, plan=plan, exposed_s=(0.020,))

    def by_ranks(op: str, num_ranks: int, size_bytes: int) -> LinkTime:
        return LinkTime(1e-3 * num_ranks, 0.0, 0.0, (num_ranks,))

    assert stalled_of(plan, 8, by_ranks) == pytest.approx(0.014)
    assert longer_than_replayed_s(played, by_ranks) == pytest.approx(0.006)


@pytest.mark.parametrize(
    ("exposed_s", "expected_s"),
    [
        # 3 ms of the hidden message fit into 8 ms of work; of the other 1.5 ms nothing is hidden
        ((0.0025, 0.0015, 0.0020), 0.0005),
        ((0.0005,), -0.001),
        ((0.0015,), 0.0),
    ],
)
def test_what_messages_took_longer_is_against_the_replay(
    exposed_s: tuple[float, ...], expected_s: float
) -> None:
    plan = rehearsal_of_step(shape(HIDDEN, AT_ONCE), Ddp(), 2)
    played = RehearsedStep(suite="s", case="c", world_size=2, plan=plan, exposed_s=exposed_s)
    assert longer_than_replayed_s(played, link) == pytest.approx(expected_s, abs=1e-9)
