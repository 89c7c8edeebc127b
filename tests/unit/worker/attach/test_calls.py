from scalebench.spec import StepPlan
from scalebench.worker.attach.hooks import FEWEST_CALLS, PATIENCE, OptimizerCalls, find_period
from scalebench.worker.attach.timing import (
    FIRST_LOOK,
    LOOK_EVERY,
    Schedule,
    decide,
    exchange_every,
    first_steady,
)
from scalebench.worker.portable import FEWEST_STEPS
from tests.examples import cases

GENERATOR, DISCRIMINATOR = 1, 2


def steps(events):
    calls = OptimizerCalls()
    return [e for e in events if (calls.backward() if e == "b" else calls.matters(int(e)))]


def test_a_call_without_a_backward_pass_is_no_step():
    assert steps([1, "b", 1, 1, 1]) == [1]


@cases(
    "turn, period",
    *(([1], 1), ([DISCRIMINATOR, GENERATOR], 2), ([DISCRIMINATOR] * 5 + [GENERATOR], 6)),
    *(([1, 2, 3], 3), ([DISCRIMINATOR] * 10 + [GENERATOR], 11)),
    ([DISCRIMINATOR] * 25 + [GENERATOR], 26),
)
def test_optimizers_that_take_turns_make_a_step_together(turn, period):
    assert find_period(turn * FEWEST_CALLS) == period
    whole = turn * FEWEST_CALLS
    assert {find_period(whole[:n]) for n in range(period + 1, PATIENCE)} <= {None, period}


def test_regularisation_every_few_iterations_makes_one_long_step():
    """StyleGAN2: of the discriminator every 16 iterations, of the generator every 4."""
    turn = [
        one
        for i in range(16)
        for one in [DISCRIMINATOR] * (2 if i == 0 else 1) + [GENERATOR] * (1 if i % 4 else 2)
    ]
    whole = turn * 10
    assert {find_period(whole[:n]) for n in range(4 * len(turn), len(whole))} == {37}
    assert {find_period(whole[:n]) for n in range(FEWEST_STEPS * 9, PATIENCE)} <= {None, 37}


@cases("with_outer", [1, 2], [2, 1], ids=["after", "in its post-hook"])
@cases("every", 2, 3, 8, 9)
def test_an_outer_optimizer_every_few_steps_makes_no_longer_step(every, with_outer):
    """DiLoCo: its hook runs before everybody's, so the outer one may be seen first."""
    calls = OptimizerCalls()
    seen = 0
    for step in range(4 * every + FEWEST_CALLS):
        calls.backward()
        seen += sum(map(calls.matters, [1] if step % every else with_outer))
    assert seen == 4 * every + FEWEST_CALLS
    assert calls.period() == 1


def test_without_an_order_every_call_is_a_step():
    order = [1 if i.bit_count() % 2 else 2 for i in range(PATIENCE - 1)]
    assert find_period(order) is None
    assert find_period([*order, 1]) == 1


PLAN = StepPlan().model_dump()


def decided(step_s, settings=PLAN):
    """The schedule of a script that takes these steps, looked at when it is asked for."""
    first, found = None, FIRST_LOOK
    while not isinstance(found, Schedule):
        so_far = found
        assert so_far <= len(step_s)
        first = first or first_steady(step_s[:so_far], settings)
        found = decide(step_s[:so_far], settings, 1, *first) if first else so_far + LOOK_EVERY
        assert isinstance(found, Schedule) or found > so_far
    return found


def test_a_transient_is_left_out_and_the_window_filled():
    step_s = [3.0, 0.5, 0.3, 0.1] + [0.05, 0.051] * 20
    found = decided(step_s)
    assert found.steady and 3 <= found.first_clean <= 6
    assert 1 <= (found.clean_end - found.first_clean) * 0.0505 / PLAN["window_s"] < 1.6


def test_an_unsteady_warm_up_is_given_up_after_its_limits():
    falling = sorted([0.1 + 0.01 * i for i in range(60)], reverse=True)
    assert first_steady(falling[:12], PLAN) is None
    found = decided(falling, PLAN | {"max_warmup_steps": 20})
    assert not found.steady and 20 < found.first_clean <= 25


@cases(
    "pattern, cycle",
    ([0.002] * 3 + [0.156], 4),
    ([0.11] + [0.009] * 15, 16),
    ([0.011] * 63 + [0.5], 64),
)
def test_a_window_has_several_cycles_and_traced_blocks_whole_ones(pattern, cycle):
    """However long ago the warm-up ended, and however long the first long step takes to come."""
    found = decided([1.0, *pattern * 30])
    assert found.clean_end - found.first_clean > 7 * cycle
    counts = {block.num_steps - 1 for block in found.blocks}
    assert all(count % cycle == 0 for count in counts) == (cycle * sum(pattern) < 4)


@cases(
    "met, period, every",
    ([8, 16, 24], 1, 8),
    ([8, 16, 20, 28, 36, 40], 1, 8),  # and where an epoch of 20 steps ends
    ([3, 8, 16], 1, 8),
    ([4, 8, 12], 2, 2),
    ([2, 3], 1, 1),
    ([1, 9, 10], 1, 1),
    ([2, 4, 6], 2, 1),
    ([8], 1, 1),
)
def test_exchanges_now_and_then_are_known_also_where_they_are_not_regular(met, period, every):
    assert exchange_every(met, period) == every
