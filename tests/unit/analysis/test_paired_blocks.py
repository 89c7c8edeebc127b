"""Ratios of rows that take turns in blocks: what cancels, what is trimmed, and that they hold."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.block_coverage import Kind, draw_round, look, truth
from scalebench.analysis.timing.paired_blocks import (
    Block,
    interleaved_variances,
    levels_of_round,
    trimmed_mean,
)

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
            blocks[KEYS[row]].append(Block(10 * start, 10 * start + 9, math.exp(log)))
    return blocks


def noisy(seed, num_rows=4, num_cycles=8, spread=0.01):
    drawn = np.random.default_rng(seed).normal(0, spread, (num_rows, num_cycles))
    return drawn + np.arange(num_rows)[:, None]


def between(levels, row, base=BASE):
    return levels[base][0] - levels[row][0]


@given(st.integers(0, 1000), st.lists(logs, min_size=8, max_size=8), st.integers(0, 1000))
def test_what_a_cycle_does_to_all_rows_cancels_in_any_order(seed, course, order):
    table = noisy(seed)
    still = levels_of_round(in_turns(table))
    moved = levels_of_round(in_turns(table, order, course))
    for key in KEYS:
        assert between(moved, key) == pytest.approx(between(still, key), abs=1e-9)
        assert moved[key][1] == pytest.approx(still[key][1], rel=1e-6, abs=1e-15)


@given(st.integers(0, 1000), st.integers(0, 7), st.integers(0, 3), st.floats(0.5, 50))
def test_one_disturbed_block_moves_no_ratio_far(seed, cycle, row, by):
    table = noisy(seed)
    spoiled = table.copy()
    spoiled[row, cycle] += by
    clean, disturbed = (levels_of_round(in_turns(one)) for one in (table, spoiled))
    for key in KEYS:
        assert abs(between(disturbed, key) - between(clean, key)) < 0.05
        assert disturbed[key][1] < 0.01


def test_the_variance_of_a_trimmed_mean_is_what_it_varies_by():
    drawn = np.random.default_rng(3).standard_t(3, (4000, 12))
    means, variances = np.transpose([trimmed_mean(one) for one in drawn])
    assert variances.mean() == pytest.approx(means.var(), rel=0.12)
    assert means.var() < 0.7 * drawn.mean(axis=1).var()


def test_a_block_that_is_missing_leaves_the_others_in_their_cycles():
    table = np.repeat([[0.0], [-0.5], [0.25], [1.0]], 6, axis=1)
    blocks = in_turns(table, course=[0.0, 5.0, -2.0, 0.1, 0.2, 9.0])
    del blocks[DDP][4:], blocks[KEYS[3]][5]
    levels = levels_of_round(blocks)
    assert [between(levels, key) for key in KEYS] == pytest.approx([0, 0.5, -0.25, -1])


@pytest.mark.parametrize(
    "bad", [Block(10, 10, 1.0), Block(10, 9, 1.0), Block(0, 9, 0.0), Block(0, 9, math.nan)]
)
def test_a_block_that_cannot_be_is_refused(bad):
    with pytest.raises(ValueError, match="has to end after its start"):
        interleaved_variances({BASE: {0: [Block(0, 9, 1.0)]}, DDP: {0: [bad]}})


@pytest.mark.parametrize("noise", ["bursty", "episodes"])
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
