"""Where the time of a race's ranks went, number by number."""

import pytest

from scalebench.analysis.rows.launches import Launches
from scalebench.analysis.rows.lockstep import lockstep_of, shares_of, staleness_of, with_lockstep
from scalebench.records.rank import Block
from tests.builders.runs import make_cell, make_record, make_result
from tests.builders.summaries import make_budget, make_row

BLOCKS = [
    Block(phase="warmup", first=0, count=2),
    Block(phase="clean", first=3, count=2),
]


def racing(rank, step_s, exchange_s, **facts):
    told = {"exchange_s": exchange_s, "num_batches": 7 + rank, **facts}
    return make_record(rank, step_s=step_s, loss=[1.0] * 5, blocks=BLOCKS, facts=told)


def race(*ranks):
    return make_result(make_cell("ddp", len(ranks), rank_batch=11), ranks=list(ranks))


def three(slow=1.0):
    """The job takes 8 s for the first block and 12 for the second; the third step is in none."""
    return race(
        racing(2, [1.0, 3.0, 90.0, 5.0, 7.0], 20.0, staleness={"2": 1}, dropped=None),
        racing(0, [4.0, 4.0 * slow, 90.0, 1.0, 3.0], 3.0, staleness={"5": 4, "2": 2}, dropped=3),
        racing(1, [2.0, 2.0, 90.0, 2.0, 2.0], 2.0, dropped=4),
    )


def test_shares_of_a_launch_sum_to_one():
    found = {one.rank: one for one in shares_of(three())}
    assert list(found) == [2, 0, 1]
    expected = {0: (9 / 20, 3 / 20, 8 / 20), 1: (6 / 20, 2 / 20, 12 / 20), 2: (0, 16 / 20, 4 / 20)}
    for rank, parts in expected.items():
        one = found[rank]
        assert (one.compute, one.exchange, one.wait) == pytest.approx(parts)
        assert one.num_batches == 7 + rank


def test_figures_are_means_over_launches_that_counted():
    """With one step of rank 0 four times as long its first block is 20 s, and the job takes 32."""
    bare = make_result(make_cell("ddp", 3, rank_batch=11))
    half = race(*three().ranks[:2], make_record(1))
    found = lockstep_of([bare, three(), half, three(slow=4.0)], None, 3)
    assert [one.rank for one in found.ranks] == [0, 1, 2] and not found.traced
    assert found.ranks[0].model_dump() == pytest.approx(
        {
            "rank": 0,
            "compute": (9 / 20 + 21 / 32) / 2,
            "exchange": (3 / 20 + 3 / 32) / 2,
            "wait": (8 / 20 + 8 / 32) / 2,
            "num_batches": 7.0,
        }
    )
    assert (found.staleness, found.num_dropped) == ({2: 6, 5: 8}, 14)


def test_without_servers_there_is_no_staleness():
    found = lockstep_of([race(racing(0, [1.0] * 5, 1.0), racing(1, [1.0] * 5, 1.0))], None, 2)
    assert (found.staleness, found.num_dropped) == (None, 0)
    assert staleness_of([]) == ({}, 0)


def test_traced_steps_tell_where_nothing_was_counted():
    budget = make_budget(0.7, 0.5)
    times = [
        one.model_copy(update={"exposed_comm_s": 0.2, "wait_s": wait_s, "step_s": 0.4})
        for one, wait_s in zip(budget.ranks, (0.05, 0.15), strict=True)
    ]
    found = lockstep_of([], budget.model_copy(update={"ranks": times}), 2)
    assert found.traced is True
    shares = [(one.rank, one.compute, one.exchange, one.wait) for one in found.ranks]
    assert shares == [pytest.approx((0, 0.5, 0.375, 0.125)), pytest.approx((1, 0.5, 0.125, 0.375))]
    empty = budget.model_copy(update={"ranks": []})
    assert lockstep_of([], empty, 2) == lockstep_of([], None, 2)
    assert "neither the strategy nor traced" in lockstep_of([], None, 2)
    assert lockstep_of([three()], None, 1) == "one rank waits for no other"


def test_rows_of_races_have_figures_and_others_a_reason():
    rows = [make_row("ddp", 3), make_row("raced", 3), make_row("raced", 1)]
    raced = three().cell.model_copy(update={"race": {"target_loss": 1.0}})
    table = {
        ("ddp", "ddp", 3): Launches(three().cell, measured={0: three()}),
        ("ddp", "raced", 3): Launches(raced, measured={0: three()}),
        ("ddp", "raced", 1): Launches(raced, measured={0: three()}),
    }
    plain, several, alone = with_lockstep(rows, table)
    assert plain.lockstep is None and plain.unavailable["lockstep"] == "the suite is no race"
    assert len(several.lockstep.ranks) == 3 and "lockstep" not in several.unavailable
    assert alone.unavailable["lockstep"] == "one rank waits for no other"
    assert alone.unavailable.items() > rows[2].unavailable.items()
