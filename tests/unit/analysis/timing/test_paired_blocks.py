"""Ratios of rows that take turns in blocks: what cancels, what is trimmed, and that they hold."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.block_coverage import Kind, draw_round, look, truth
from scalebench.analysis.timing.paired_blocks import Block, levels_of_round

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
