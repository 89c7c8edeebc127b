"""Losses are compared after as many steps as all rows beside them trained."""

import pytest

from scalebench.analysis.rows.lockstep import lockstep_of, shares_of
from scalebench.analysis.summarise import summarise
from scalebench.records.rank import Block
from scalebench.records.rows.lockstep import LockstepFigures
from tests.builders.runs import make_cell, make_failed, make_record, make_result, make_run
from tests.builders.summaries import make_budget

PLAIN, TWO = make_cell("plain", 1), make_cell("ddp", 2)
WEAK = {"scaling": "weak"}


def trained(cell, losses):
    """A launch of ``len(losses)`` steps; two warm up or begin the window, the rest is clean."""
    clean = (0.1,) * (len(losses) - 2)
    ranks = [make_record(rank, clean, loss=list(losses)) for rank in range(cell.world_size)]
    return make_result(cell, ranks=ranks)


def rows_of(*results):
    run = make_run(list(results))
    return {(row.case, row.world_size): row for row in summarise(run).rows}


def test_the_faster_row_is_not_credited_with_its_more_steps():
    rows = rows_of(trained(PLAIN, [5, 4, 3, 2.5]), trained(TWO, [5, 4.1, 3.1, 2.4, 2, 1.5]))
    plain, two = rows["plain", 1], rows["ddp", 2]
    assert (plain.loss_last, two.loss_last) == (2.5, 1.5)
    assert (plain.loss_equal, two.loss_equal) == (2.5, pytest.approx(2.4))
    assert plain.loss_equal_steps == two.loss_equal_steps == 4


def test_other_batches_have_other_numbers_of_steps():
    """Weak scaling: a step of two ranks sees twice the samples, and is compared with its like."""
    one, two = make_cell("plain", 1, **WEAK), make_cell("ddp", 2, **WEAK)
    rows = rows_of(trained(one, [5, 4, 3]), trained(two, [5, 4, 3, 2]))
    assert rows["plain", 1].loss_equal_steps == 3
    assert rows["ddp", 2].loss_equal_steps == 4


def test_a_row_without_a_loss_has_none_and_shortens_nobody():
    rows = rows_of(trained(PLAIN, [5, 4, 3, 2.5]), make_failed(TWO))
    assert rows["plain", 1].loss_equal_steps == 4
    gone = rows["ddp", 2]
    assert gone.loss_equal is None and gone.loss_equal_steps is None
    assert gone.unavailable["loss_equal"] == gone.unavailable["loss_last"]


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
