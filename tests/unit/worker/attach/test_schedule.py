"""The schedule that rank 0 decides on."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scalebench import stats
from scalebench.spec import StepPlan
from scalebench.worker.attach.schedule import (
    KINDS,
    MARGIN_S,
    Schedule,
    decide,
    is_time_to_look,
    steady_start,
)

PLAN = StepPlan().model_dump()


def plan(**changes: object) -> dict[str, object]:
    return {**PLAN, **changes}


@given(st.lists(st.floats(1e-4, 10.0), max_size=60))
def test_the_steady_state_is_found_by_the_rule_of_the_own_loop(step_s):
    found, expected = steady_start(step_s), stats.steady_start(step_s)
    if found != expected:  # of equally good ones rounding decides
        assert found is not None and expected is not None
        rest = [np.var(step_s[i:]) / (len(step_s) - i) for i in (found, expected)]
        np.testing.assert_allclose(rest[0], rest[1], rtol=1e-6, atol=1e-12)


def test_a_transient_is_left_out_and_the_window_filled():
    step_s = [3.0, 0.5, 0.3, 0.1] + [0.05, 0.051] * 8
    found = decide(step_s, plan(), 1)
    assert found is not None and found.steady
    assert 3 <= found.first_clean <= 6
    assert (found.clean_end - found.first_clean) * 0.05 >= PLAN["window_s"]


def test_nothing_changes_before_the_others_can_have_heard_of_it():
    step_s = [1.0] + [0.01, 0.011] * 60
    found = decide(step_s, plan(window_s=0.1), 1)
    assert found is not None
    assert (found.clean_end - len(step_s)) * 0.01 >= MARGIN_S * 0.9


def test_rounds_wait_until_the_others_can_have_heard_of_them_after_a_short_window_as_well():
    step_s = [1.0] + [0.001, 0.0011] * 8
    found = decide(step_s, plan(steps=40), 1)
    assert found is not None
    assert found.clean_end - found.first_clean == 41
    assert (found.blocks[0].first - len(step_s)) * 0.001 >= MARGIN_S * 0.9


def test_an_unsteady_warm_up_is_given_up_after_its_limits():
    step_s = [1.0] + [0.1 + 0.01 * i for i in range(30)]
    falling = [1.0, *sorted(step_s, reverse=True)]
    assert decide(falling[:12], plan(), 1) is None
    found = decide(falling, plan(max_warmup_steps=20), 1)
    assert found is not None and not found.steady and found.first_clean == len(falling)


def test_an_exact_number_of_steps_is_kept():
    found = decide([1.0] + [0.1, 0.11] * 8, plan(steps=7), 1)
    assert found is not None
    assert found.clean_end - found.first_clean == 8  # the first of a block counts for nothing


def test_rounds_hold_one_block_of_each_kind_without_a_break():
    found = decide([1.0] + [0.01, 0.011] * 8, plan(), 1)
    assert found is not None
    assert tuple(block.kind for block in found.blocks[:3]) == KINDS
    borders = [found.clean_end, *(block.end for block in found.blocks)]
    assert [block.first for block in found.blocks] == borders[:-1]
    assert found.end == borders[-1]
    assert len(found.blocks) <= len(KINDS) * PLAN["max_rounds"]


def test_without_traces_there_are_no_rounds():
    found = decide([1.0] + [0.01, 0.011] * 8, plan(trace=False), 1)
    assert found is not None and not found.blocks and found.end >= found.clean_end


def test_a_schedule_survives_its_journey():
    found = decide([1.0] + [0.01, 0.011] * 8, plan(), 2)
    assert found is not None
    assert Schedule.from_json(found.to_json()) == found


def test_when_the_warm_up_is_looked_at():
    assert [n for n in range(26) if is_time_to_look(n)] == [10, 15, 20, 25]
