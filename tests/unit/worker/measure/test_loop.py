from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.rows.resources import energy_per_sample
from scalebench.session.plan import Machine, Request, make_plan
from scalebench.spec import Case, Plain, StepPlan, Suite
from scalebench.worker.measure import loop, rounds
from scalebench.worker.measure.loop import FIRST_WARMUP_BLOCK, WARMUP_BLOCK, Loop
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies.base import Training
from tests.builders.runs import make_cell, make_record, make_result
from tests.builders.watched import BEGIN_NS, A, make_twin, sample
from tests.examples import cases


class Fake(Training):
    """Training and clock in one: step number i takes ``duration(i)`` seconds of a time of its own.

    Whatever is asked for between the steps is written down: nothing may wait inside a block.
    """

    def __init__(self, duration):
        self.duration = duration
        self.now = 0.0
        self.num_steps = 0
        self.marks = []
        self.events = []

    def step(self, batch):
        assert batch == self.num_steps, "every batch is trained on once, in order"
        self.now += self.duration(self.num_steps)
        self.num_steps += 1
        self.events.append("step")
        return torch.tensor(float(self.num_steps))

    def mark(self):
        self.marks.append(self.now)

    def resolve(self):
        self.events.append("resolve")
        marks, self.marks = self.marks, []
        return [b - a for a, b in pairwise(marks)]


def run_loop(fake, cell):
    """Warm up and measure as the cell's plan says; return what was seen."""
    context = RankContext(cell, 0, 0, torch.device("cpu"))
    loop = Loop(fake, iter(range(1_000_000)), context, fake)
    loop.warm_up(cell.steps)
    loop.measure_clean(cell.steps)
    return loop.seen


def jitter(i):
    """A thousandth up and down: steady from the first step, and not by a tie."""
    return 1e-3 * (-1) ** i


def level(step_s):
    return lambda i: step_s * (1 + jitter(i))


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


@cases("settling_steps", 2, 9, 14)
def test_steps_in_which_a_strategy_still_settles_are_never_clean(settling_steps):
    """However steady they are: PowerSGD's first steps are as even as its later ones."""
    seen, fake = measured(level(0.01), settling_steps=settling_steps, window_s=0.2)
    check_consistent(seen, fake)
    clean = [block for block in seen.blocks if block.phase == "clean"]
    assert min(block.first for block in clean) == settling_steps


@cases("num_slow", 3, 4, 5, 6, 7)
def test_warm_up_goes_on_until_the_transient_lies_in_the_first_half(num_slow):
    seen, fake = measured(lambda i: level(0.1 if i < num_slow else 0.01)(i), window_s=0.495)
    num_warmup = FIRST_WARMUP_BLOCK + (0 if num_slow <= FIRST_WARMUP_BLOCK // 2 else WARMUP_BLOCK)
    assert sum(count for _, count in blocks(seen)[:-1]) == num_warmup
    assert blocks(seen)[0] == ("warmup", num_slow)
    assert len(seen.clean_s()) in (49, 50)
    assert seen.steady is True
    assert max(seen.clean_s()) < 0.02
    check_consistent(seen, fake)


@cases("limit", 2, 9, 10, 11, 23, 60, 200)
def test_a_series_that_never_settles_is_given_up_at_the_limit_of_steps(limit):
    seen, fake = measured(lambda i: 0.01 * 0.999**i, max_warmup_steps=limit, window_s=0.2)
    assert sum(count for phase, count in blocks(seen) if phase == "warmup") == limit
    assert seen.steady is False
    assert len(seen.clean_s()) >= 10
    check_consistent(seen, fake)


START_S = 0.3
SECONDS = 60.0
WATTS = 300
"""Of the twin's first device."""


def measured_on_twin(step_s, **request):
    """Plan and measure on a GPU whose clock and energy counter are a recorded twin's."""
    suite = Suite(name="x", question="?", cases=(Case(name="plain", strategy=Plain()),))
    plan = make_plan(Request(world_sizes=(1,), **request), [suite], Machine(1, 8))
    cell = make_cell("plain", 1, device="cuda", steps=plan.cells[-1].steps)
    fake = Fake(level(step_s))
    fake.now = START_S
    watch = SimpleNamespace(process_time=lambda: fake.now)
    watch.monotonic_ns = lambda: BEGIN_NS + round(fake.now * 1e9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "time", watch)
        seen = run_loop(fake, cell)
    assert fake.now < SECONDS
    told = {name: getattr(seen, name) for name in ("step_s", "loss", "blocks")}
    rank = make_record(**told, facts={"device_uuid": A.removeprefix("GPU-")})
    node, _ = sample(make_twin(), [A], until_s=fake.now + 0.5)
    return make_result(cell, ranks=[rank], node=node), fake


@cases("step_s", 0.003, 0.03, 0.15, 0.4)
def test_a_run_with_the_defaults_has_an_energy_number(step_s):
    result, _ = measured_on_twin(step_s)
    energy = energy_per_sample(result)
    assert energy.reason is None
    assert energy.j_per_sample == pytest.approx(WATTS * step_s / 32, rel=0.01)


@cases("request_", {"quick": True}, {"steps": 20})
def test_a_run_that_is_to_be_short_has_none_and_says_why(request_):
    result, fake = measured_on_twin(0.03, **request_)
    energy = energy_per_sample(result)
    assert energy.j_per_sample is None
    assert "energy needs 2 s" in energy.reason
    assert fake.now - START_S < 2.0


OFFSETS = st.integers(-(10**15), 10**15)
DELAYS = st.integers(0, 10**8)
S = 10**9


def exchange(offset_ns, there_ns, on_the_way_ns, back_ns):
    own = there_ns + offset_ns
    return rounds.Exchange(own - on_the_way_ns, there_ns, own + back_ns)


def offset_at(offset_ns, at_ns, bound_ns=0, error_ns=0):
    return rounds.ClockOffset(offset_ns + error_ns, bound_ns, at_ns, "ping-pong")


@given(OFFSETS, st.lists(st.tuples(DELAYS, DELAYS), min_size=1, max_size=rounds.ROUND_TRIPS))
def test_the_true_offset_is_within_the_bound_whatever_the_delays(offset, delays):
    exchanges = [exchange(offset, 10**12 + i * S, *delay) for i, delay in enumerate(delays)]
    found = rounds.offset_of(exchanges)
    assert abs(found.offset_ns - offset) <= found.bound_ns
    assert found.bound_ns <= min(map(sum, delays)) / 2 + 1


@given(
    *(OFFSETS, st.floats(-190e-6, 190e-6), st.integers(1_000_000, 3600 * S)),
    *[st.integers(0, 10**6)] * 2,
    *(st.floats(-1, 1), st.floats(-1, 1), st.floats(0, 1)),
)
def test_drift_is_followed(offset, drift, elapsed, bound_0, bound_1, wrong_0, wrong_1, where):
    start = 10**13 + offset
    before = offset_at(offset, start, bound_0, round(wrong_0 * bound_0))
    later, wrong = offset + round(drift * elapsed), round(wrong_1 * bound_1)
    after = offset_at(later, start + elapsed, bound_1, wrong)
    aligned = rounds.combine(before, after)
    assert aligned.stepped is None
    time = start + round(where * elapsed)
    truth = time - offset - drift * (time - start)
    assert abs(aligned.on_rank_0(time) - truth) <= aligned.bound_ns + 2  # whole nanoseconds


@given(OFFSETS, st.sampled_from([-1, 1]), st.integers(10**6, 10**12), st.integers(0, 10**5))
def test_a_step_is_told_and_the_bound_reaches_to_both_sides(offset, sign, size, bound):
    before = offset_at(offset, S, bound)
    after = offset_at(offset + sign * size, 2 * S, bound)
    aligned = rounds.combine(before, after)
    assert f"moved by {sign * size / 1e6:+.3f} ms" in aligned.stepped
    for true_offset in (offset - bound, offset + sign * size + sign * bound):
        found = 2 * S - aligned.on_rank_0(2 * S)
        assert abs(found - true_offset) <= aligned.bound_ns
