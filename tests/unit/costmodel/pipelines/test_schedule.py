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
from scalebench.errors import UsageError
from scalebench.spec import Pipeline

RULED = [name for name in STYLES if name not in FROM_TORCH]
ranks = st.integers(1, 6)
microbatches = st.integers(1, 20)
chunks = st.integers(1, 3)


def planned(name: str, p: int, m: int, v: int) -> Schedule | None:
    v = 1 if STYLES[name].chunks == "one" else v
    return None if why_not(name, p, m, v) else plan_schedule(name, p, m, v)


@given(st.sampled_from(RULED), ranks, microbatches, chunks)
def test_every_schedule_is_complete_and_ends(name: str, p: int, m: int, v: int) -> None:
    schedule = planned(name, p, m, v)
    if schedule is None:
        return
    check(schedule)
    timeline = dry_run(schedule, equal_times(schedule.num_stages))
    work_s = sum(timeline.busy_s(rank) for rank in range(p))
    assert work_s == pytest.approx(3 * m * schedule.num_stages)
    assert timeline.step_s >= work_s / p - 1e-9


@given(st.sampled_from(["gpipe", "1f1b"]), ranks, microbatches, st.floats(0.1, 9))
def test_the_bubble_of_equal_stages_is_that_of_the_law(
    name: str, p: int, m: int, backward_s: float
) -> None:
    schedule = planned(name, p, m, 1)
    if schedule is None:
        return
    found = dry_run(schedule, equal_times(p, 1.0, backward_s)).bubble_ratio
    assert found == pytest.approx((p - 1) / (m + p - 1))
    assert bubble_law(name, p, m, 1) == pytest.approx(found)


@given(ranks, st.integers(1, 5), chunks)
def test_interleaving_divides_the_bubble_by_the_chunks(p: int, rounds: int, v: int) -> None:
    m = rounds * p
    schedule = plan_schedule("interleaved-1f1b", p, m, v)
    found = dry_run(schedule, equal_times(p * v)).bubble_ratio
    assert found == pytest.approx((p - 1) / (v * m + p - 1))
    assert bubble_law("interleaved-1f1b", p, m, v) == pytest.approx(found)


@given(ranks, st.integers(1, 3))
def test_putting_weights_off_makes_the_bubble_smaller(p: int, rounds: int) -> None:
    m = rounds * p
    whole, split = (
        dry_run(plan_schedule(name, p, m), equal_times(p)).bubble_ratio
        for name in ("1f1b", "zero-bubble")
    )
    assert split < whole or p == 1


@given(ranks, microbatches)
def test_1f1b_keeps_no_more_microbatches_than_stages_and_gpipe_all(p: int, m: int) -> None:
    assert plan_schedule("gpipe", p, m).in_flight() == [m] * p
    if m >= p:
        assert plan_schedule("1f1b", p, m).in_flight() == [p - rank for rank in range(p)]


@given(st.sampled_from(RULED), st.integers(2, 4), st.integers(1, 3), chunks, st.floats(0, 1))
def test_transfer_and_overhead_only_make_steps_longer(
    name: str, p: int, rounds: int, v: int, extra_s: float
) -> None:
    schedule = planned(name, p, p * rounds * v, v)
    assert schedule is not None
    times = equal_times(schedule.num_stages)
    alone = dry_run(schedule, times)
    sent = dry_run(schedule, times, transfer_s=extra_s)
    costly = dry_run(schedule, times, overhead_s=extra_s)
    assert sent.step_s >= alone.step_s
    assert sent.busy_s(0) == pytest.approx(alone.busy_s(0))
    assert costly.busy_s(0) == pytest.approx(alone.busy_s(0) + extra_s * len(schedule.ranks[0]))


def test_ranks_that_wait_for_one_another_are_found() -> None:
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
def test_a_wrong_schedule_is_refused_with_the_action(ranks: list[list[str]], told: str) -> None:
    actions = [tuple(Action(int(a[0]), a[1], int(a[2])) for a in rank) for rank in ranks]
    with pytest.raises(ValueError, match=told):
        check(Schedule("wrong", 2, tuple(actions)))


def test_ranks_that_cannot_run_a_pipeline_are_told_why() -> None:
    def why(world_size: int, rank_batch: int = 8, **settings: object) -> str | None:
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


def test_what_torch_refuses_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="as many microbatches as stages: 3 for 4 stages"):
        plan_schedule("1f1b", 4, 3)
    with pytest.raises(ValueError, match="7 cannot be split into 3"):
        plan_schedule("interleaved-1f1b", 2, 7, 2)
    with pytest.raises(UsageError, match="interleaved-1f1b"):
        plan_schedule("interleaved", 2, 4)


def test_a_link_carries_one_message_at_a_time() -> None:
    """Outputs at 1, 2, 3, 4 s, each 3 s on the way: they arrive at 4, 7, 10, 13 s."""
    schedule = plan_schedule("gpipe", 2, 4, 1)
    found = dry_run(schedule, equal_times(2, 1.0, 2.0), transfer_s=3.0)
    assert found.start_s[1][:4] == (4.0, 7.0, 10.0, 13.0)
    # Gradients are made at 16, 18, 20, 22 s and arrive at 19, 22, 25, 28 s; each is 2 s of work.
    assert found.start_s[0][4:] == (19.0, 22.0, 25.0, 28.0)
    assert found.step_s == 30.0


def order(name, p, m, v=1):
    return [" ".join(map(str, actions)) for actions in plan_schedule(name, p, m, v).ranks]


def test_gpipe_does_all_forward_passes_first():
    assert order("gpipe", 3, 2) == [
        "0F0 0F1 0B0 0B1",
        "1F0 1F1 1B0 1B1",
        "2F0 2F1 2B0 2B1",
    ]


def test_1f1b_is_ahead_by_the_ranks_that_follow():
    assert order("1f1b", 3, 4) == [
        "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3",
        "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3",
        "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3",
    ]


def test_looped_breadth_first_turns_round_behind_the_last_chunk():
    assert order("looped-bfs", 2, 3, 2) == [
        "0F0 0F1 0F2 2F0 2F1 2F2 2B2 2B1 2B0 0B2 0B1 0B0",
        "1F0 1F1 1F2 3F0 3F1 3F2 3B2 3B1 3B0 1B2 1B1 1B0",
    ]


def test_interleaved_1f1b_goes_through_the_chunks_in_rounds():
    """Ahead by a round and by two for each rank that follows: 2 + 2 on the first, 2 on the last."""
    assert order("interleaved-1f1b", 2, 4, 2) == [
        "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3",
        "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3",
    ]


def test_zero_bubble_puts_weights_off_by_as_many_as_ranks_stand_before():
    assert order("zero-bubble", 3, 3) == [
        "0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2",
        "1F0 1F1 1I0 1F2 1I1 1W0 1I2 1W1 1W2",
        "2F0 2I0 2F1 2I1 2F2 2I2 2W0 2W1 2W2",
    ]


@pytest.mark.parametrize(
    ("name", "p", "m", "v", "refused"),
    [
        ("1f1b", 3, 3, 1, False),
        ("1f1b", 3, 2, 1, True),
        ("dualpipev", 2, 4, 2, False),
        ("dualpipev", 2, 3, 2, True),
        ("gpipe", 3, 1, 1, False),
        ("looped-bfs", 3, 1, 2, False),
        ("interleaved-1f1b", 2, 7, 2, True),  # rounds of 2⅓
        ("interleaved-1f1b", 2, 3, 2, False),  # a round of 3
        ("interleaved-1f1b", 4, 3, 2, False),  # one round, however short
        ("zero-bubble", 2, 5, 1, True),
        ("zero-bubble", 2, 6, 1, False),
    ],
)
def test_which_microbatches_a_schedule_can_have(name, p, m, v, refused):
    assert (why_not(name, p, m, v) is not None) == refused


def why(world_size, rank_batch, **settings):
    return why_no_pipeline(Pipeline.model_validate(settings), rank_batch, world_size)


def test_a_compiled_module_has_its_backward_pass_in_one_piece():
    split = {"schedule": "zero-bubble", "microbatches": 4}
    assert "--no-compile" in why(2, 8, compile=True, **split)
    assert why(2, 8, **split) is None
    assert why(2, 8, compile=True, schedule="1f1b", microbatches=4) is None
