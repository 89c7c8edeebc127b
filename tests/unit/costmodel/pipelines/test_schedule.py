"""Schedules as data: bubbles by the law, promises of memory, deadlocks, wrong schedules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.costmodel.pipelines.dry_run import Deadlock, dry_run, equal_times
from scalebench.costmodel.pipelines.orders import (
    FROM_TORCH,
    STYLES,
    bubble_law,
    plan_schedule,
    why_no_pipeline,
    why_not,
)
from scalebench.costmodel.pipelines.schedule import Action, Schedule, check
from scalebench.spec import Pipeline

RULED = [name for name in STYLES if name not in FROM_TORCH]
ranks = st.integers(1, 6)
microbatches = st.integers(1, 20)
chunks = st.integers(1, 3)


def planned(name, p, m, v):
    v = 1 if STYLES[name].chunks == "one" else v
    return None if why_not(name, p, m, v) else plan_schedule(name, p, m, v)


@given(st.sampled_from(RULED), ranks, microbatches, chunks)
def test_every_schedule_is_complete_and_ends(name, p, m, v):
    schedule = planned(name, p, m, v)
    if schedule is None:
        return
    check(schedule)
    timeline = dry_run(schedule, equal_times(schedule.num_stages))
    work_s = sum(timeline.busy_s(rank) for rank in range(p))
    assert work_s == pytest.approx(3 * m * schedule.num_stages)
    assert timeline.step_s >= work_s / p - 1e-9


@given(st.sampled_from(["gpipe", "1f1b"]), ranks, microbatches, st.floats(0.1, 9))
def test_the_bubble_of_equal_stages_is_that_of_the_law(name, p, m, backward_s):
    schedule = planned(name, p, m, 1)
    if schedule is None:
        return
    found = dry_run(schedule, equal_times(p, 1.0, backward_s)).bubble_ratio
    assert found == pytest.approx((p - 1) / (m + p - 1))
    assert bubble_law(name, p, m, 1) == pytest.approx(found)


@given(ranks, st.integers(1, 5), chunks)
def test_interleaving_divides_the_bubble_by_the_chunks(p, rounds, v):
    m = rounds * p
    schedule = plan_schedule("interleaved-1f1b", p, m, v)
    found = dry_run(schedule, equal_times(p * v)).bubble_ratio
    assert found == pytest.approx((p - 1) / (v * m + p - 1))
    assert bubble_law("interleaved-1f1b", p, m, v) == pytest.approx(found)


@given(ranks, st.integers(1, 3))
def test_putting_weights_off_makes_the_bubble_smaller(p, rounds):
    m = rounds * p
    whole, split = (
        dry_run(plan_schedule(name, p, m), equal_times(p)).bubble_ratio
        for name in ("1f1b", "zero-bubble")
    )
    assert split < whole or p == 1


def test_ranks_that_wait_for_one_another_are_found():
    crossed = Schedule(
        "crossed",
        2,
        (
            (Action(0, "F", 0), Action(0, "B", 0), Action(0, "F", 1), Action(0, "B", 1)),
            (Action(1, "F", 0), Action(1, "F", 1), Action(1, "B", 0), Action(1, "B", 1)),
        ),
    )
    check(crossed)
    with pytest.raises(Deadlock, match="rank 0 waits with 0B0 for 1B0, rank 1 waits with 1F1"):
        dry_run(crossed, equal_times(2))


@pytest.mark.parametrize(
    ("ranks", "told"),
    [
        ([["0F0", "0B0"], ["0F1", "0B1"]], "stage 0 is on rank 0 and on 1"),
        ([["0B0", "0F0"]], "0B0 comes after nothing"),
        ([["0F0", "0B0", "0W0"]], "0W0 comes after FB"),
        ([["0F0", "0I0"]], "no backward pass for 0F0"),
        ([["0F0", "0B0"]], "0F1 is missing"),
        ([["1F0", "1B0", "1F1", "1B1"]], "not numbered"),
        ([["0F0", "0B0", "0F1", "0B1", "0F2", "0B2"]], "more than 2 microbatches"),
    ],
)
def test_a_wrong_schedule_is_refused_with_the_action(ranks, told):
    actions = [tuple(Action(int(a[0]), a[1], int(a[2])) for a in rank) for rank in ranks]
    with pytest.raises(ValueError, match=told):
        check(Schedule("wrong", 2, tuple(actions)))


def test_ranks_that_cannot_run_a_pipeline_are_told_why():
    def why(world_size, rank_batch=8, **settings):
        asked = {"schedule": "1f1b", "microbatches": 4, **settings}
        return why_no_pipeline(Pipeline.model_validate(asked), rank_batch, world_size)

    assert why(4) is None
    assert why(8, data_parallel=2) is None
    assert "4 for 8 stages" in str(why(8))
    assert "4 for 5 stages" in str(why(10, data_parallel=2))
    assert "9 ranks cannot be split into 2 pipelines" in str(why(9, data_parallel=2))
    assert "6 samples per pipeline cannot be split into 4" in str(why(4, rank_batch=6))
    interleaved = {"schedule": "interleaved-1f1b", "chunks": 2, "microbatches": 6}
    assert why(2, rank_batch=12, **interleaved) is None
    assert "6 cannot be split into 1 rounds" not in str(why(4, rank_batch=12, **interleaved))


def why(world_size, rank_batch, **settings):
    return why_no_pipeline(Pipeline.model_validate(settings), rank_batch, world_size)


def test_a_compiled_module_has_its_backward_pass_in_one_piece():
    split = {"schedule": "zero-bubble", "microbatches": 4}
    assert "--no-compile" in why(2, 8, compile=True, **split)
    assert why(2, 8, **split) is None
    assert why(2, 8, compile=True, schedule="1f1b", microbatches=4) is None
