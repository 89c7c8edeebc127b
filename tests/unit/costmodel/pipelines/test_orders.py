"""Orders of passes, action by action, and which pipelines are refused."""

import pytest

from scalebench.costmodel.pipelines.orders import (
    plan_schedule,
    why_no_pipeline,
    why_not,
)
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
