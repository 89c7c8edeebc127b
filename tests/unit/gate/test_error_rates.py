"""How often the gate cries wolf and how often it sleeps, by simulation: bounded, with fixed seeds.

The same at full size, with the tables of the documentation: ``make bench-gate``.
"""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gate_noise import LEVELS, Noise
from benchmarks.gate_power import GATE, MARKS, MOST_FALSE, simulate
from benchmarks.gate_rules import gate_alarms, gate_pairs
from scalebench.gate.result import GateResult

pytestmark = pytest.mark.slow

CALLS = 200
MEDIAN_ERROR = 0.006
"""Of a launch's median step, from within the launch; with the levels, launches differ by 1 %."""


def runs(noise, generator):
    """Two runs: the medians of the launches, and what each launch knows of its own."""
    within = np.full((noise.num_rows, noise.num_launches), MEDIAN_ERROR**2)
    for _ in range(2):
        levels = noise.launch_levels(generator)
        yield levels + generator.normal(0, MEDIAN_ERROR, levels.shape), within


@pytest.mark.parametrize("levels", LEVELS)
def test_false_alarms_and_finds_at_five_launches_a_side(levels):
    """At most 1 % of calls with any false alarm; a row 5 % slower found in at least 95 %."""
    noise = Noise(levels, num_rows=10)
    generator = np.random.default_rng(list(LEVELS).index(levels))
    alarms = found = 0
    for _ in range(CALLS):
        base, new = runs(noise, generator)
        alarms += bool(gate_alarms(gate_pairs(base, new), noise.num_rows)[0])
        new[0][5] += math.log1p(0.05)
        found += 5 in gate_alarms(gate_pairs(base, new), noise.num_rows)[0]
    assert alarms <= 4, "at 1 %, more than 4 in 200 come by chance once in 20"
    assert found >= 0.93 * CALLS, "at 95 %, fewer than 186 in 200 come by chance once in 10"


def test_beside_the_rules_of_others_on_the_same_steps():
    counts = simulate(Noise("normal", num_rows=6, num_steps=60), calls=30)
    rate = {name: count.alarms / count.calls for name, count in counts.items()}
    found = {name: count.found[0.05] / count.calls for name, count in counts.items()}
    wolf, asleep = "Mann–Whitney on steps, 5 %", "github-action-benchmark, 200 %"
    assert rate[GATE] <= 1 / 30 and found[GATE] >= 0.9
    assert rate[wolf] > 0.5, "steps are no unit"
    assert found[asleep] == 0 and found["±7 % of the median"] < 0.5
    assert found["pytest-benchmark `mean:5%`"] < found[GATE]
    power = list(counts[GATE].found.values())
    assert power == sorted(power), "the same steps, slowed by more, are found more often"


def test_the_documented_rates_are_generated_and_keep_the_promise():
    text = (Path(__file__).parents[3] / "benchmarks" / "evidence.md").read_text()
    generated = text.partition(MARKS[0])[2].partition(MARKS[1])[0]
    lines = re.findall(r"^\| ([^|]+) \| (\d+) \| scalebench gate \| (\d+) \| ([\d.]+) \| [\d.]+ "
                       r"\| ([\d.]+) \|$", generated, re.M)  # fmt: skip
    assert {line[0] for line in lines} == set(LEVELS)
    for _, _, calls, false, found in lines:
        assert int(calls) >= 200 and float(false) <= 1.0 and float(found) >= 95.0


def test_a_result_promises_what_was_simulated():
    result = GateResult("a", "b", "one", "two", rows=())
    assert (result.false_alarm_rate, result.confidence) == (MOST_FALSE, 0.99)
    assert result.as_json()["false_alarm_rate"] == MOST_FALSE
