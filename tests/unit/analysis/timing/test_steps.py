import math
import random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.block_coverage import (
    FEWEST_ROUNDS,
    MOST_ROUNDS,
    Kind,
    draw_round,
    is_enough,
    look,
    truth,
)
from scalebench.analysis.attribution import LaunchAttribution, attribute, clean_parts
from scalebench.analysis.rows.launches import CONFIDENCE_OF_LOOKS
from scalebench.analysis.rows.round_noise import Block as turns_Block
from scalebench.analysis.rows.round_noise import RoundNoise, levels_of_round
from scalebench.analysis.rows.script import kinds_of
from scalebench.analysis.steps import (
    clean_pace,
    launch_step_s,
    launch_throughput,
    mean_of_steps,
    steps_of_block,
)
from scalebench.records.measured.rank import Block, StepGap
from scalebench.report.words.script_checks import kinds
from scalebench.spec import LocalSgd, ParameterServer, Script
from scalebench.spec.script import ScriptTarget
from scalebench.stats import Estimate
from tests.builders.runs import make_cell, make_record, make_result
from tests.builders.tracing.traced import (
    flat,
    make_operation,
    make_trace,
    make_traced_record,
    make_traced_result,
    on_gpu,
)
from tests.examples import cases

TWO = make_cell("ddp", 2)


@cases("strategy", LocalSgd(period=4), ParameterServer())
def test_without_lockstep_a_step_takes_the_mean_of_its_block(strategy):
    """With its first step, in which the exchange may be."""
    blocks = [Block(phase="clean", first=0, count=4), Block(phase="clean", first=4, count=4)]
    ranks = [
        make_record(0, step_s=[0.1, 0.1, 0.1, 0.9, 0.1, 0.1, 0.1, 0.5], blocks=blocks),
        make_record(1, step_s=[0.1, 0.1, 0.1, 0.8, 0.1, 0.1, 0.1, 0.6], blocks=blocks),
    ]
    local = make_cell("local", 2, strategy=strategy)
    assert launch_step_s(make_result(local, ranks=ranks)) == pytest.approx((0.3 + 0.225) / 2)
    assert launch_step_s(make_result(TWO, ranks=ranks)) == pytest.approx((1.1 + 0.8) / 6)


@given(st.data(), st.lists(st.floats(1e-4, 10), min_size=2, max_size=40), st.integers(1, 8))
def test_the_steps_of_a_block_sum_to_its_time(data, first, num_ranks):
    others = st.lists(st.floats(1e-4, 10), min_size=len(first), max_size=len(first))
    each = [first, *(data.draw(others) for _ in range(num_ranks - 1))]
    block = Block(phase="clean", first=0, count=len(first))
    ranks = [make_record(r, step_s=steps, blocks=[block]) for r, steps in enumerate(each)]
    pace = steps_of_block(ranks, block)
    assert len(pace) == len(first) - 1
    assert (pace > 0).all()
    assert pace.sum() == pytest.approx(max(map(sum, each)) - max(s[0] for s in each))
    if num_ranks == 1:
        assert pace.tolist() == first[1:]


@cases(
    "kind, wire, payload",
    *(("all_reduce", 1500, 1000), ("all_gather", 750, 250), ("reduce_scatter", 750, 1000)),
    *(("all_to_all", 750, 1000), ("broadcast", 750, 1000), ("reduce", 750, 1000)),
    *(("send", 1000, 1000), ("recv", 0, 0), ("barrier", 0, 0)),
)
def test_what_a_rank_of_four_sends_and_hands_over_of_a_thousand_bytes(kind, wire, payload):
    """By the ring's law; of operations with a root the mean over the ranks."""
    trace = make_trace([make_operation(50, 75, kind=kind, num_bytes=1000, group_size=4)])
    found = LaunchAttribution(make_traced_result(*(make_traced_record(r, trace) for r in range(4))))
    assert (found.wire_bytes(0), found.payload_bytes(0)) == (wire, payload)


KERNELS = (12.0, 8.0, 15.0, 10.0)
"""Of every step, milliseconds: the device takes as long with and without the profiler."""
TRANSFER = 5.0


gaps = st.lists(st.floats(0.0, 20.0), min_size=4, max_size=4)


@given(gaps, gaps, st.floats(0.0, 10.0))
def test_whatever_tracing_adds_to_the_gaps_the_planted_step_comes_out(clean, added, stall):
    compute, at = [], 0.0
    for length, gap, more in zip(KERNELS, clean, added, strict=True):
        compute.append((at + gap + more, at + gap + more + length))
        at = compute[-1][1]
    sent, data = (at, at + TRANSFER), (at + TRANSFER, at + TRANSFER + stall)
    stalled = {"steps": [(0, data[1])], "data": flat([data] * bool(stall))}
    trace = make_trace([make_operation(*sent)], compute, **stalled)
    clean_ms = sum(KERNELS) + sum(clean) + TRANSFER + stall
    result = make_traced_result(make_traced_record(0, trace, clean_ms), case="ddp")
    found = clean_parts(attribute(on_gpu(result)), 0, clean_ms / 1e3)
    near = {"abs": 1e-7}  # times of a trace are whole nanoseconds
    assert found["compute"] == pytest.approx(sum(KERNELS) / 1e3, **near)
    assert found["other_idle"] == pytest.approx(sum(clean) / 1e3, **near)
    assert found["data_stall"] == pytest.approx(stall / 1e3, **near)
    assert found["exposed_transfer"] == pytest.approx(TRANSFER / 1e3, **near)


BURSTS = [0.002, 0.002, 0.002, 0.156]
PATTERNS = {
    "a loader's bursts": BURSTS,
    "an optimizer every fifth step": [0.01] * 4 + [0.05],
    "rollouts": [0.11] + [0.009] * 15,
    "averaging every 64": [0.011] * 63 + [0.04],
    "all different": [0.01 * i for i in range(1, 8)],
}

patterns = st.lists(st.floats(1e-3, 1), min_size=1, max_size=12)


def steps(pattern, num_periods, phase=0, jitter=0.0, seed=0):
    found = np.roll(np.tile(pattern, num_periods), -phase)
    return found * np.exp(jitter * np.random.default_rng(seed).standard_normal(len(found)))


def mean_launch(step_s, **changes):
    """A script's launch on one rank with these clean steps behind the first of the block."""
    cell = make_cell(
        "script", 1, strategy=Script(), workload=ScriptTarget(name="train", program="train.py")
    )
    whole = [9.0, *map(float, step_s)]
    blocks = [Block(phase="clean", first=0, count=len(whole))]
    fields = {"step_s": whole, "loss": [], "blocks": blocks, "gaps": []} | changes
    return make_result(cell, ranks=[make_record(0, **fields)])


@given(patterns, st.integers(4, 30), st.integers(0, 11))
@example([0.75, 0.5, 1.0, 0.5, 1.0, 0.5], 4, 0)
def test_throughput_times_the_measured_time_is_the_samples(pattern, num_periods, phase):
    step_s = steps(pattern, num_periods, phase)
    found = mean_launch(step_s)
    trained = launch_throughput(found) * step_s.sum()
    assert trained == pytest.approx(found.cell.global_batch * len(step_s))


@given(patterns, st.integers(4, 30), st.integers(0, 11), st.integers(0, 11))
def test_it_does_not_matter_where_in_a_period_the_window_begins(pattern, num, phase, rest):
    """Nor that it ends within one."""
    step_s = steps(pattern, num, phase)
    first = mean_of_steps(step_s)
    longer = np.concatenate([step_s, step_s[: rest % first.period]])
    assert mean_of_steps(longer).seconds == pytest.approx(float(np.mean(pattern)))


@cases("pattern", *PATTERNS.values(), ids=PATTERNS)
def test_patterns_under_noise_have_their_period_and_their_mean(pattern):
    found = [mean_of_steps(steps(pattern, 8, seed, 0.1, seed)) for seed in range(40)]
    assert np.mean([one.period % len(pattern) == 0 for one in found]) > 0.9
    relative = np.array([one.seconds for one in found]) / np.mean(pattern) / np.exp(0.1**2 / 2)
    assert relative.mean() == pytest.approx(1, abs=0.02)
    told = np.sqrt(np.mean([one.variance for one in found]))
    assert 0.4 < told / relative.std() < 2.5


def test_only_evaluating_and_saving_is_taken_out_of_a_step():
    """After steps of 1 s: 5 s between two steps, of which 3 s evaluated and 1 s saved."""
    gap = {"step": 3, "seconds": 5.0, "evaluation_s": 3.0, "checkpoint_s": 1.0}
    step_s = [1.0, 1.0, 6.0, 1.0]
    assert clean_pace(mean_launch(step_s, gaps=[StepGap(**gap)])) == [1, 1, 2, 1]
    cut = [Block(phase="clean", first=0, count=3), Block(phase="clean", first=3, count=2)]
    earlier = mean_launch(step_s, gaps=[StepGap(**gap)], blocks=cut)
    assert clean_pace(earlier) == [1, 1, 2, 1]
    assert launch_step_s(earlier) == 5 / 4
    hidden = mean_launch([1.0, 1.0, 1.5, 1.0], gaps=[StepGap(**gap)])  # another rank took as long
    assert clean_pace(hidden) == [1, 1, 1, 1]


def test_kinds_of_steps_in_words():
    assert kinds(kinds_of(steps(BURSTS, 9, 2))) == "3 of 4 steps take 2.00 ms, every 4th 156 ms"
    twice = kinds_of(steps([0.01, 0.01, 0.09, 0.09, 0.01], 9))
    assert kinds(twice) == "of 5 steps 2 take 90.0 ms, the others 10.0 ms"
    irregular = np.where(np.isin(np.arange(50), [3, 17, 19, 40]), 0.05, 0.01)
    told = "8 % of the steps take 50.0 ms, the others 10.0 ms"
    assert kinds(kinds_of(irregular)) == told
    assert kinds_of([0.1] * 9) is None


BASE, DDP, DDP_2 = ("ddp", "plain", 1), ("ddp", "ddp", 1), ("ddp", "ddp", 2)
KEYS = [BASE, DDP, DDP_2, ("ddp", "other", 2)]
logs = st.floats(-3, 3)


def in_turns(table, seed=0, course=None):
    """Rows of logarithms, a column for each cycle, as blocks in a random order in each cycle."""
    order = random.Random(seed)
    num_rows, num_cycles = np.shape(table)
    blocks = {key: [] for key in KEYS[:num_rows]}
    for cycle in range(num_cycles):
        for turn, row in enumerate(order.sample(range(num_rows), num_rows)):
            start = cycle * num_rows + turn
            log = table[row][cycle] + (0 if course is None else course[cycle])
            blocks[KEYS[row]].append(turns_Block(10 * start, 10 * start + 9, math.exp(log)))
    return blocks


def between(levels, row, base=BASE):
    return levels[base][0] - levels[row][0]


@given(st.integers(0, 1000), st.lists(logs, min_size=8, max_size=8), st.integers(0, 1000))
def test_what_a_cycle_does_to_all_rows_cancels_in_any_order(seed, course, order):
    drawn = np.random.default_rng(seed).normal(0, 0.01, (4, 8))
    table = drawn + np.arange(4)[:, None]
    still = levels_of_round(in_turns(table))
    moved = levels_of_round(in_turns(table, order, course))
    for key in KEYS:
        assert between(moved, key) == pytest.approx(between(still, key), abs=1e-9)
        assert moved[key][1] == pytest.approx(still[key][1], rel=1e-6, abs=1e-15)


@cases("noise", "bursty", "episodes")
def test_intervals_hold_and_are_no_wider_than_those_of_launches(noise):
    kind, generator = Kind(noise, 12, 0.0), np.random.default_rng(7)
    true = truth(kind, generator)
    looks = []
    for _ in range(60):
        both = [draw_round(kind, generator) for _ in range(3)]
        looks.append(
            (look(kind, [a for a, _ in both], true), look(kind, [b for _, b in both], true))
        )
    held = np.mean([np.abs(turns.error) <= turns.half_width for turns, _ in looks])
    widths = [np.mean([one.half_width for one in some]) for some in zip(*looks, strict=True)]
    assert 0.92 < held <= 1
    assert widths[0] < 1.05 * widths[1]


PLAIN_ROW, DDP_ROW = ("ddp", "plain", 1), ("ddp", "ddp", 2)


@cases("target", 0.7, 1.2, 2.0)
def test_an_interval_that_was_looked_at_after_every_round_holds(target):
    """One row and its baseline: the hardest case, the variance is known from the rounds alone."""
    generator = np.random.default_rng(11)
    held = []
    for drawn in generator.standard_normal((1500, MOST_ROUNDS)):
        for num in range(FEWEST_ROUNDS, MOST_ROUNDS + 1):
            rows = {
                PLAIN_ROW: dict(enumerate(drawn[:num].tolist())),
                DDP_ROW: dict.fromkeys(range(num), 0.0),
            }
            found = RoundNoise(rows, {}).ratio(DDP_ROW, PLAIN_ROW, confidence=CONFIDENCE_OF_LOOKS)
            logs = np.log([found.low, found.high])
            of_log = Estimate(value=0, low=logs[0], high=logs[1], n=num)
            if is_enough(num, [of_log], target):
                held.append(logs[0] <= 0 <= logs[1])
                break
    assert len(held) == 1500
    assert 0.935 < np.mean(held) < 0.98
