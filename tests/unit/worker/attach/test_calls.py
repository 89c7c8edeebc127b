"""Calls of optimizers are grouped as the user would count steps."""

import pytest

from scalebench.worker.attach.calls import FEWEST_CALLS, PATIENCE, OptimizerCalls, find_period
from scalebench.worker.portable import FEWEST_STEPS

GENERATOR, DISCRIMINATOR = 1, 2


def steps(events):
    calls = OptimizerCalls()
    return [e for e in events if (calls.backward() if e == "b" else calls.matters(int(e)))]


def test_a_call_without_a_backward_pass_is_no_step():
    assert steps([1, "b", 1, 1, 1]) == [1]


@pytest.mark.parametrize(
    ("turn", "period"),
    [
        ([1], 1),
        ([DISCRIMINATOR, GENERATOR], 2),
        ([DISCRIMINATOR] * 5 + [GENERATOR], 6),
        ([1, 2, 3], 3),
        ([DISCRIMINATOR] * 10 + [GENERATOR], 11),
        ([DISCRIMINATOR] * 25 + [GENERATOR], 26),
    ],
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


@pytest.mark.parametrize("with_outer", [[1, 2], [2, 1]], ids=["after", "in its post-hook"])
@pytest.mark.parametrize("every", [2, 3, 8, 9])
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
