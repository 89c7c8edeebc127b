"""The measured loop on a time of its own: when it is warm, what is clean, when it has enough."""

import pytest

from scalebench.spec import StepPlan
from scalebench.worker.measure.loop import FIRST_WARMUP_BLOCK, WARMUP_BLOCK
from tests.builders.loops import Fake, level, run_loop
from tests.builders.runs import make_cell


def measured(duration, settling_steps=0, world_size=1, **plan):
    fake = Fake(duration)
    fake.settling_steps = settling_steps
    cell = make_cell("plain", world_size, steps=StepPlan(**plan))
    return run_loop(fake, cell), fake


def blocks(seen):
    return [(block.phase, block.count) for block in seen.blocks]


def check_consistent(seen, fake):
    assert len(seen.step_s) == len(seen.loss) == len(seen.pace_s) == fake.num_steps
    expected = [fake.duration(i) for i in range(fake.num_steps)]
    assert seen.step_s == pytest.approx(expected)
    assert seen.loss == [float(i + 1) for i in range(fake.num_steps)]
    ends = [block.first + block.count for block in seen.blocks]
    assert [block.first for block in seen.blocks] == [0, *ends[:-1]]
    assert ends[-1] == fake.num_steps
    phases = [block.phase for block in seen.blocks]
    assert phases == sorted(phases, reverse=True)  # warmup before clean
    resolved_at = [fake.events[:i].count("step") for i, e in enumerate(fake.events) if e != "step"]
    assert set(resolved_at) <= set(ends)  # nothing waits inside a block
    assert resolved_at[-1] == ends[-1]
    assert seen.first_step_ns is not None


def test_a_run_that_is_steady_from_the_first_step_counts_them_all_but_the_first_of_each_block():
    seen, fake = measured(level(0.01), window_s=0.995)
    assert blocks(seen) == [("clean", 10), ("clean", 92)]
    assert seen.steady is True
    assert len(seen.clean_s()) == 9 + 91
    check_consistent(seen, fake)


@pytest.mark.parametrize("settling_steps", [2, 9, 14])
def test_steps_in_which_a_strategy_still_settles_are_never_clean(settling_steps):
    """However steady they are: PowerSGD's first steps are as even as its later ones."""
    seen, fake = measured(level(0.01), settling_steps=settling_steps, window_s=0.2)
    check_consistent(seen, fake)
    clean = [block for block in seen.blocks if block.phase == "clean"]
    assert min(block.first for block in clean) == settling_steps


@pytest.mark.parametrize("num_slow", [3, 4, 5, 6, 7])
def test_warm_up_goes_on_until_the_transient_lies_in_the_first_half(num_slow):
    seen, fake = measured(lambda i: level(0.1 if i < num_slow else 0.01)(i), window_s=0.495)
    num_warmup = FIRST_WARMUP_BLOCK + (0 if num_slow <= FIRST_WARMUP_BLOCK // 2 else WARMUP_BLOCK)
    assert sum(count for _, count in blocks(seen)[:-1]) == num_warmup
    assert blocks(seen)[0] == ("warmup", num_slow)
    assert len(seen.clean_s()) in (49, 50)
    assert seen.steady is True
    assert max(seen.clean_s()) < 0.02
    check_consistent(seen, fake)


def drifting(i):
    return 0.01 * 0.999**i


@pytest.mark.parametrize("limit", [2, 9, 10, 11, 23, 60, 200])
def test_a_series_that_never_settles_is_given_up_at_the_limit_of_steps(limit):
    seen, fake = measured(drifting, max_warmup_steps=limit, window_s=0.2)
    assert sum(count for phase, count in blocks(seen) if phase == "warmup") == limit
    assert seen.steady is False
    assert len(seen.clean_s()) >= 10
    check_consistent(seen, fake)
