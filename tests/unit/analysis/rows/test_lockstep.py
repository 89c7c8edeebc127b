"""Where the time of a race's ranks went: of counted exchanges, of traced steps, or not known."""

import pytest

from scalebench.analysis.rows.lockstep import lockstep_of, shares_of
from scalebench.records.rank import Block
from scalebench.records.rows.lockstep import LockstepFigures
from tests.builders.runs import make_cell, make_record, make_result
from tests.builders.summaries import make_budget


def counted(rank, step_s, exchange_s, **facts):
    blocks = [
        Block(phase="warmup", first=0, count=2, start_ns=0, end_ns=1),
        Block(phase="clean", first=2, count=2, start_ns=2, end_ns=3),
    ]
    own = {"exchange_s": exchange_s, "num_batches": 10 * (rank + 1), **facts}
    return make_record(rank, step_s=step_s, blocks=blocks, facts=own)


@pytest.fixture
def launch():
    ranks = [
        counted(0, [1.0, 1.0, 1.0, 1.0], 1.0, staleness={"1": 3, "0": 1}, dropped=2),
        counted(1, [2.0, 2.0, 0.5, 0.5], 1.0),
    ]
    return make_result(make_cell(world_size=2), ranks=ranks)


def test_who_is_done_first_waits_at_the_end_of_a_block(launch):
    """The job takes 4 s for the first block and 2 s for the second."""
    fast, slow = shares_of(launch)
    assert (fast.compute, fast.exchange, fast.wait) == pytest.approx((3 / 6, 1 / 6, 2 / 6))
    assert (slow.compute, slow.exchange, slow.wait) == pytest.approx((4 / 6, 1 / 6, 1 / 6))
    assert (fast.num_batches, slow.num_batches) == (10, 20)


def test_gradients_of_all_launches_are_put_together(launch):
    found = lockstep_of([launch, launch], None, 2)
    assert isinstance(found, LockstepFigures)
    assert (found.staleness, found.num_dropped, found.traced) == ({0: 2, 1: 6}, 4, False)
    assert found.mean_staleness == pytest.approx(0.75)
    assert [one.rank for one in found.ranks] == [0, 1]


def test_what_is_not_known_is_not_made_up(launch):
    assert lockstep_of([launch], None, 1) == "one rank waits for no other"
    bare = make_result(make_cell(world_size=2))
    assert "neither the strategy nor traced steps" in str(lockstep_of([bare], None, 2))


def test_of_traced_steps_exposed_communication_is_exchange_and_wait(launch):
    """Of steps of 500 ms, 150 are exposed communication, of which rank 0 waits for 50."""
    budget = make_budget(0.7, 0.5)
    times = [
        one.model_copy(update={"exposed_comm_s": 0.15, "wait_s": wait_s})
        for one, wait_s in zip(budget.ranks, (0.05, 0.0), strict=True)
    ]
    bare = make_result(make_cell(world_size=2))
    found = lockstep_of([bare], budget.model_copy(update={"ranks": times}), 2)
    assert isinstance(found, LockstepFigures) and found.traced
    assert [(one.compute, one.exchange, one.wait) for one in found.ranks] == [
        pytest.approx((0.7, 0.2, 0.1)),
        pytest.approx((0.7, 0.3, 0.0)),
    ]
