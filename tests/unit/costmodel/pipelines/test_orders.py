"""Orders of passes, action by action, and which pipelines are refused."""

import pytest

from scalebench.costmodel.pipelines.dry_run import Timeline, dry_run
from scalebench.costmodel.pipelines.orders import (
    bubble_law,
    plan_schedule,
    style_of,
    why_no_pipeline,
    why_not,
)
from scalebench.costmodel.pipelines.schedule import (
    Action,
    Schedule,
    check,
    needs,
    one_after_another,
)
from scalebench.errors import UsageError
from scalebench.spec import Pipeline


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


def test_interleaved_1f1b_with_three_chunks_of_three_microbatches():
    """One round of 3: ahead by 2·3 + 2·1 of 9 on the first of two ranks, by 2·3 on the last."""
    assert order("interleaved-1f1b", 2, 3, 3) == [
        "0F0 0F1 0F2 2F0 2F1 2F2 4F0 4F1 4F2 4B0 4B1 4B2 2B0 2B1 2B2 0B0 0B1 0B2",
        "1F0 1F1 1F2 3F0 3F1 3F2 5F0 5B0 5F1 5B1 5F2 5B2 3B0 3B1 3B2 1B0 1B1 1B2",
    ]


def test_zero_bubble_puts_weights_off_by_as_many_as_ranks_stand_before():
    assert order("zero-bubble", 3, 3) == [
        "0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2",
        "1F0 1F1 1I0 1F2 1I1 1W0 1I2 1W1 1W2",
        "2F0 2I0 2F1 2I1 2F2 2I2 2W0 2W1 2W2",
    ]


def test_zero_bubble_with_two_chunks():
    """Ahead by a round of 2 and by one for each rank that follows."""
    assert order("zero-bubble", 2, 2, 2) == [
        "0F0 0F1 2F0 2F1 2I0 2W0 2I1 2W1 0I0 0W0 0I1 0W1",
        "1F0 1F1 3F0 3I0 3F1 3I1 3W0 1I0 3W1 1I1 1W0 1W1",
    ]


def test_a_split_backward_pass_holds_its_microbatch_until_its_second_half():
    assert plan_schedule("zero-bubble", 3, 3).in_flight() == [3, 3, 3]
    assert plan_schedule("interleaved-1f1b", 2, 4, 2).in_flight() == [5, 3]


@pytest.mark.parametrize(
    ("warmup", "expected"), [(0, "aAbBcC"), (1, "abAcBC"), (2, "abcABC"), (3, "abcABC")]
)
def test_after_the_warm_up_passes_take_turns(warmup, expected):
    assert "".join(one_after_another("abc", "ABC", warmup)) == expected


@pytest.mark.parametrize(
    ("action", "needed"),
    [
        ("0F5", None),
        ("1F5", "0F5"),
        ("3F5", "2F5"),
        ("3B5", None),
        ("2B5", "3B5"),
        ("0I5", "1B5"),
        ("3I5", None),
        ("1W5", None),
    ],
)
def test_what_comes_from_another_of_four_stages(action, needed):
    found = needs(Action.parse(action), 4)
    assert found == (None if needed is None else Action.parse(needed))


def test_an_action_is_read_as_it_is_written():
    assert Action.parse("12I345") == Action(12, "I", 345)
    assert str(Action(12, "I", 345)) == "12I345"
    with pytest.raises(ValueError, match="'12X3' is not an action"):
        Action.parse("12X3")


def test_a_schedule_without_actions_is_none():
    with pytest.raises(ValueError, match="not numbered"):
        check(Schedule("empty", 0, ()))


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


def test_the_law_of_the_bubble_has_the_chunks_in_it():
    assert bubble_law("gpipe", 3, 5, 1) == pytest.approx(2 / 7)
    assert bubble_law("1f1b", 4, 6, 1) == pytest.approx(3 / 9)
    assert bubble_law("interleaved-1f1b", 3, 5, 2) == pytest.approx(2 / 12)
    assert bubble_law("looped-bfs", 3, 5, 2) is None


def test_a_schedule_that_only_torch_knows_is_not_planned():
    with pytest.raises(ValueError, match="only torch knows the order of zbv"):
        plan_schedule("zbv", 2, 4, 2)
    with pytest.raises(UsageError, match="gpipe"):
        style_of("gpip")
    assert style_of("zbv").torch_name == "ZBVZeroBubble"


def test_a_rank_that_works_longer_than_the_step_is_not_idle():
    """Overhead stands before an action; where the first begins at once it is not in the step."""
    schedule = Schedule("made up", 1, ((Action(0, "F", 0),),))
    assert Timeline(schedule, ((0.0,),), ((3.0,),), overhead_s=0.5).idle_s(0) == 0.0
    bare = Timeline(schedule, ((1.0,),), ((3.0,),))
    assert (bare.busy_s(0), bare.idle_s(0), bare.bubble_ratio) == (2.0, 1.0, 1 / 3)


def test_stages_with_times_of_their_own_by_hand():
    """Passes of 1, 2 and 4 s, gradients twice as long, half a second on every way."""
    seconds = {(kind, s): (1 if kind == "F" else 2) * 2.0**s for kind in "FB" for s in range(3)}
    found = dry_run(plan_schedule("gpipe", 3, 2), seconds, transfer_s=0.5)
    assert found.start_s == (
        (0.0, 1.0, 25.0, 33.0),
        (1.5, 3.5, 20.5, 28.5),
        (4.0, 8.0, 12.0, 20.0),
    )
    assert found.end_s[0] == (1.0, 2.0, 27.0, 35.0)
    assert found.step_s == 35.0
    assert [found.busy_s(rank) for rank in range(3)] == [6.0, 12.0, 24.0]
    assert [found.idle_s(rank) for rank in range(3)] == [29.0, 23.0, 11.0]
    assert found.bubble_ratio == 63 / 105
