"""The measured loop on a time of its own: when it is warm, what is clean, when it has enough."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.records.rank import Block
from scalebench.spec import StepPlan
from scalebench.worker.measure import loop
from scalebench.worker.measure.loop import (
    FIRST_WARMUP_BLOCK,
    WARMUP_BLOCK,
    clean_from,
    steps_still_wanted,
)
from scalebench.worker.portable import steady_start
from tests.builders.loops import Fake, level, run_loop
from tests.builders.runs import make_cell


def measured(duration, settling_steps=0, world_size=1, **plan):
    """Run the loop in one process on fake time."""
    fake = Fake(duration)
    fake.settling_steps = settling_steps
    cell = make_cell("plain", world_size, steps=StepPlan(**plan))
    return run_loop(fake, cell), fake


def blocks(seen):
    return [(block.phase, block.count) for block in seen.blocks]


def noise(i):
    """A thousandth of something that looks like noise."""
    return 1e-3 * math.sin(12.9898 * i * i)


def check_consistent(seen, fake):
    """What holds for every measurement."""
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


def test_an_exact_number_of_steps_counts_nothing_of_the_warm_up():
    seen, fake = measured(level(0.01), steps=5)
    assert blocks(seen) == [("warmup", 10), ("clean", 6)]
    check_consistent(seen, fake)


@pytest.mark.parametrize("settling_steps", [2, 9, 14])
def test_steps_in_which_a_strategy_still_settles_are_never_clean(settling_steps):
    """However steady they are: PowerSGD's first steps are as even as its later ones."""
    seen, fake = measured(level(0.01), settling_steps=settling_steps, window_s=0.2)
    check_consistent(seen, fake)
    clean = [block for block in seen.blocks if block.phase == "clean"]
    assert min(block.first for block in clean) == settling_steps


def test_the_first_step_of_a_block_is_not_clean():
    seen, _ = measured(lambda i: 7.0 if i in (0, 10) else level(0.01)(i), window_s=1.0)
    assert seen.step_s[10] == pytest.approx(7.0)
    assert max(seen.clean_s()) < 0.02


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


def test_warm_up_ends_at_the_very_first_block_after_which_the_series_is_steady():
    seen, _ = measured(lambda i: 0.01 * (1 + 9 * math.exp(-i / 6)) * (1 + noise(i)), window_s=0.5)
    asked = range(FIRST_WARMUP_BLOCK, len(seen.pace_s) + 1, WARMUP_BLOCK)
    told = next(n for n in asked if steady_start(seen.pace_s[:n]) is not None)
    assert told > FIRST_WARMUP_BLOCK + 2 * WARMUP_BLOCK
    assert told in {block.first + block.count for block in seen.blocks}
    last_warmup = [block for block in seen.blocks if block.phase == "warmup"][-1]
    assert last_warmup.first + last_warmup.count == steady_start(seen.pace_s[:told])


def drifting(i):
    return 0.01 * 0.999**i


@pytest.mark.parametrize("limit", [2, 9, 10, 11, 23, 60, 200])
def test_a_series_that_never_settles_is_given_up_at_the_limit_of_steps(limit):
    seen, fake = measured(drifting, max_warmup_steps=limit, window_s=0.2)
    assert sum(count for phase, count in blocks(seen) if phase == "warmup") == limit
    assert seen.steady is False
    assert len(seen.clean_s()) >= 10
    check_consistent(seen, fake)


def test_a_series_that_never_settles_is_given_up_at_the_limit_of_seconds():
    seen, fake = measured(drifting, max_warmup_s=0.25, window_s=0.2)
    warmup_s = sum(seen.step_s[: next(b.first for b in seen.blocks if b.phase == "clean")])
    assert 0.25 <= warmup_s <= 0.25 + WARMUP_BLOCK * 0.01
    assert seen.steady is False
    check_consistent(seen, fake)


@pytest.mark.parametrize(
    ("step_s", "world_size", "num_warmup"), [(2.0, 2, 2), (0.4, 2, 12), (2.0, 1, 12)]
)
def test_long_steps_of_several_ranks_are_not_warmed_up_for_long(step_s, world_size, num_warmup):
    seen, fake = measured(
        level(step_s), world_size=world_size, steps=3, long_step_s=1.0, max_warmup_s=1.0
    )
    assert sum(count for phase, count in blocks(seen) if phase == "warmup") == num_warmup
    assert len(seen.clean_s()) == 3
    check_consistent(seen, fake)


@pytest.mark.parametrize("steps", [1, 2, 7, 100])
def test_steps_are_exactly_as_many_clean_ones_in_one_block(steps):
    seen, fake = measured(level(0.01), steps=steps)
    assert blocks(seen) == [("warmup", 10), ("clean", steps + 1)]
    assert len(seen.clean_s()) == steps
    check_consistent(seen, fake)


@pytest.mark.parametrize("step_s", [1e-4, 3e-3, 0.07])
def test_the_window_is_filled_and_not_much_overrun(step_s):
    seen, fake = measured(level(step_s), window_s=1.0)
    assert 0.9 <= sum(seen.clean_s()) <= 1.002 + 2 * step_s
    check_consistent(seen, fake)


def test_a_window_shorter_than_the_fewest_steps_has_the_fewest_steps():
    seen, _ = measured(level(2.0), window_s=1.0, min_steps=12)
    assert len(seen.clean_s()) == 12
    assert blocks(seen) == [("clean", 10), ("clean", 4)]


def test_steps_that_become_faster_are_followed_by_another_block():
    seen, fake = measured(lambda i: level(0.1 if i < 12 else 0.01)(i), window_s=2.0, min_steps=2)
    assert sum(seen.clean_s()) >= 1.8
    check_consistent(seen, fake)


def test_what_is_left_of_the_window_at_the_speed_so_far():
    plan = StepPlan(window_s=2.0, min_steps=2)
    assert steps_still_wanted([0.125] * 5, plan, 0.125) == 11
    assert steps_still_wanted([0.125] * 14, plan, 0.125) == 2
    assert steps_still_wanted([0.125] * 15, plan, 0.125) == 0  # the rest is not worth a block
    assert steps_still_wanted([0.125] * 30, plan, 0.125) == 0


def test_steps_from_the_steady_one_on_are_clean_and_a_block_is_cut_where_it_lies():
    two = [Block(phase="warmup", first=0, count=10), Block(phase="warmup", first=10, count=5)]
    cut = [(b.phase, b.first, b.count) for b in clean_from(3, two)]
    assert cut == [("warmup", 0, 3), ("clean", 3, 7), ("clean", 10, 5)]
    cut = [(b.phase, b.first, b.count) for b in clean_from(10, two)]
    assert cut == [("warmup", 0, 10), ("clean", 10, 5)]
    assert [b.phase for b in clean_from(0, two)] == ["clean", "clean"]


def test_the_processor_time_of_a_block_that_is_cut_goes_with_its_steps():
    whole = Block(phase="warmup", first=0, count=10, cpu_s=2.0)
    assert [b.cpu_s for b in clean_from(3, [whole])] == pytest.approx([0.6, 1.4])
    assert [b.cpu_s for b in clean_from(0, [whole])] == [2.0]
    assert [b.cpu_s for b in clean_from(3, [whole.model_copy(update={"cpu_s": None})])] == [
        None
    ] * 2


def test_every_block_tells_its_processor_time(monkeypatch):
    noted = iter([1.0, 1.25, 10.0, 10.5])  # before and after each block
    monkeypatch.setattr(loop.time, "process_time", lambda: next(noted))
    seen, _ = measured(level(0.1), steps=4, max_warmup_steps=2)
    assert [block.cpu_s for block in seen.blocks] == [0.25, 0.5]


@given(
    st.lists(st.floats(1e-4, 10), max_size=40),
    st.floats(0.01, 100),
    st.integers(2, 30),
)
def test_more_steps_never_make_the_plan_want_more_than_its_limits(clean, window, fewest):
    plan = StepPlan(window_s=window, min_steps=fewest)
    step_s = 0.37
    wanted = steps_still_wanted(clean, plan, step_s)
    missing = max(0, fewest - len(clean))
    assert wanted >= missing
    if wanted > missing:
        assert wanted * step_s <= window - sum(clean) + step_s
