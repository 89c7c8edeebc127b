"""Real runs of equal code on 8 H100: the gate has to let them pass, and to find what is slowed."""

import gzip
import json
import math
from collections import defaultdict

import numpy as np

from scalebench.gate.family import Pair, judge
from scalebench.gate.observation import measured
from scalebench.gate.result import WORSE
from tests.builders.repository.field_files import field_file

SIDE = 7
"""At most so many runs on a side."""


def log_steps():
    """For each program that ran four times or more, the logarithm of each run's mean step."""
    found = defaultdict(list)
    with gzip.open(field_file("steps/speedruns_8xH100.jsonl.gz"), "rt") as lines:
        for run in map(json.loads, lines):
            elapsed = run["elapsed_ms"][len(run["elapsed_ms"]) // 10 :]  # the first ones compile
            if len(elapsed) >= 20 and (mean := float(np.mean(elapsed)) / run["step_gap"][0]) > 0:
                found[run["code"]].append(math.log(mean))
    return [runs for runs in found.values() if len(runs) >= 4]


def is_red(base, new, slower=0.0):
    up, down = math.log1p(0.01), -math.log1p(-0.01)
    slowed = [step + math.log1p(slower) for step in new]
    [one] = judge([Pair("step_s", measured(base), measured(slowed), up, down)])
    return one.finding in WORSE


def test_of_gates_between_real_runs_of_equal_code_at_most_one_in_a_hundred_is_red():
    """In the order in which they ran, and dealt out by chance; 5 % slower is mostly found."""
    generator = np.random.default_rng(8)
    programs = log_steps()
    splits = [runs for runs in programs]
    splits += [list(generator.permutation(runs)) for runs in programs for _ in range(5)]
    halves = [(min(len(runs) // 2, SIDE), runs) for runs in splits]
    sides = [(runs[:half], runs[half : 2 * half]) for half, runs in halves]
    assert len(programs) >= 40
    assert sum(is_red(*pair) for pair in sides) <= 0.01 * len(sides)
    assert sum(is_red(*pair, slower=0.05) for pair in sides) >= 0.8 * len(sides)
