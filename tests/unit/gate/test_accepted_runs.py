import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gate_hosts import HOSTS, MARKS, Hosts, simulate_hosts
from benchmarks.gate_noise import LEVELS, Noise
from benchmarks.gate_power import MARKS as LAUNCH_MARKS
from benchmarks.gate_power import MOST_FALSE
from benchmarks.gate_rules import gate_alarms, gate_pairs
from scalebench.errors import UsageError
from scalebench.gate.baselines import accept
from scalebench.gate.gate import compare
from scalebench.gate.result import WORSE, GateResult
from scalebench.gate.results import Results
from scalebench.report.gate_ci import render_verdict_markdown
from scalebench.report.gate_table import render_verdict
from scalebench.report.tables.layout import Screen
from tests.builders.gated import gated, gated_run, verdict_of
from tests.builders.summaries import make_row, make_summary
from tests.examples import cases

pytestmark = pytest.mark.slow

DOCUMENT = Path(__file__).parents[3] / "benchmarks" / "evidence.md"
ALL = [("plain", 1), *((case, n) for case in ("ddp", "ddp-small") for n in (2, 4))]


def on_host(level, seed, **changes):
    """A run on a host that makes every step ``level`` times as long."""
    return gated_run(dict.fromkeys(ALL, level), seed=seed, **changes)


@cases(
    "hosts, accepted, num_rows",
    (Hosts("hosts", host_sd=0.02), 3, 12),
    (Hosts("hosts", host_sd=0.01), 5, 4),
    (Hosts("rows", row_sd=0.02), 3, 12),
    (Hosts("slower", host_sd=0.03, new_is_slower=0.03), 8, 4),
    (Hosts("slower than any", host_sd=0.01, new_is_slower=0.03), 8, 4),
    (Hosts("the others alike", new_is_slower=0.03), 8, 4),
)
def test_runs_that_differ_by_their_hosts_raise_no_alarm(hosts, accepted, num_rows):
    """Where the launches of all runs are taken for those of one, every eighth call does."""
    found = simulate_hosts(hosts, accepted, calls=80, num_rows=num_rows)
    assert found.alarms <= 3, "at 1 %, more than 3 in 80 come by chance once in 100"
    assert found.blind_alarms >= 10


def test_a_regression_beyond_what_hosts_differ_by_is_found():
    found = simulate_hosts(Hosts("hosts", host_sd=0.01), 8, calls=30, num_rows=4)
    assert found.found[0.10] >= 28


def test_the_documented_rates_are_generated_and_keep_the_promise():
    generated = DOCUMENT.read_text().partition(MARKS[0])[2].partition(MARKS[1])[0]
    lines = re.findall(
        r"^\| ([^|]+) \| (\d) \| ([\d.]+) \| [\d.]+ \| ([\d.]+|–) \|", generated, re.M
    )
    assert {name for name, *_ in lines} == {hosts.name for hosts in HOSTS}
    for name, accepted, false, _ in lines:
        if int(accepted) > 1:
            assert float(false) <= 1.0, (name, accepted)
    assert any(float(false) > 20 for _, accepted, false, _ in lines if accepted == "1")


def results(*runs):
    return Results("base", runs[:1], repeats=runs[1:])


@cases(
    "level, verdict, host",
    (1.03, "no change seen", "3 % slower"),
    (0.97, "not worse", "3 % faster"),
)
def test_a_host_that_differs_from_all_accepted_ones_is_no_change_of_the_code(level, verdict, host):
    accepted = [on_host(1.0, seed) for seed in range(8)]
    found = compare(results(*accepted), Results("new", (on_host(level, 9),)))
    assert not [row for row in found.rows if row.verdict in (*WORSE, "improved")]
    assert found.exit_code == 0
    step = verdict_of(found, "step_s")
    assert (step.verdict, step.host_allowance) == (verdict, 0.03)
    assert step.reason == f"a host that is {host} explains it; --interleave rules that out"
    assert step.min_detectable > 0.03 and step.p_value > 0.01
    told = " ".join(render_verdict(found, Screen()).split())
    assert "from 8 accepted runs, and a host may be 3 % slower than theirs" in told


def test_the_output_says_what_the_promise_covers():
    base, new = gated_run(seed=1), gated_run(seed=2)
    alone = gated(base, new)
    several = compare(results(base, gated_run(seed=3)), Results("new", (new,)))
    interleaved = gated(base, new, rounds=True)
    assert [found.covers for found in (alone, several, interleaved)] == [
        "launches",
        "runs",
        "interleaved",
    ]
    assert [found.as_json()["covers"] for found in (alone, several)] == ["launches", "runs"]
    for found, words in (
        (alone, "--interleave"), (alone, "not how jobs and hosts do"),
        (several, "from 2 accepted runs"), (interleaved, "interleaved in one job"),
    ):  # fmt: skip
        told = " ".join(render_verdict(found, Screen()).split())
        assert words in told and "at most 1 gate in 100 fails by mistake" in told
        assert words.split(" (")[0] in render_verdict_markdown(found).replace("\\", "")
    nothing = replace(alone, rows=())
    assert nothing.covers is None and "by mistake" not in render_verdict(nothing, Screen())


def run(number, *rows, **changes):
    made = list(rows) or [make_row()]
    return make_summary(made, **{"run_id": f"run-{number}", "created": f"day {number}", **changes})


@cases(
    "rows, status, why",
    ([("ok", 2)], "complete", ""),
    ([("ok", 2), ("skipped", 3)], "complete", ""),
    ([("skipped", 2), ("skipped", 3)], "complete", "nothing was measured in it"),
    ([("ok", 2), ("oom", 3)], "complete", "ddp-25mb at N=3 is oom"),
    ([("failed", 5), ("oom", 3)], "interrupted", "ddp-25mb at N=5 is failed"),
    ([("ok", 2)], "interrupted", "run --resume "),
)
def test_a_baseline_has_no_holes(project, rows, status, why):
    made = [make_row(world_size=size, status=told) for told, size in rows]
    if not why:
        assert accept(Results("run", (run(1, *made, status=status),)), "ci")
        return
    with pytest.raises(UsageError, match=why):
        accept(Results("run", (run(1, *made, status=status),)), "ci")


CALLS = 200
MEDIAN_ERROR = 0.006
"""Of a launch's median step, from within the launch; with the levels, launches differ by 1 %."""


def runs(noise, generator):
    """Two runs: the medians of the launches, and what each launch knows of its own."""
    within = np.full((noise.num_rows, noise.num_launches), MEDIAN_ERROR**2)
    for _ in range(2):
        levels = noise.launch_levels(generator)
        yield levels + generator.normal(0, MEDIAN_ERROR, levels.shape), within


@cases("levels", *LEVELS)
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


def test_the_documented_rates_of_launches_are_generated_and_keep_the_promise():
    text = (Path(__file__).parents[3] / "benchmarks" / "evidence.md").read_text()
    generated = text.partition(LAUNCH_MARKS[0])[2].partition(LAUNCH_MARKS[1])[0]
    lines = re.findall(r"^\| ([^|]+) \| (\d+) \| scalebench gate \| (\d+) \| ([\d.]+) \| [\d.]+ "
                       r"\| ([\d.]+) \|$", generated, re.M)  # fmt: skip
    assert {line[0] for line in lines} == set(LEVELS)
    for _, _, calls, false, found in lines:
        assert int(calls) >= 200 and float(false) <= 1.0 and float(found) >= 95.0


def test_a_result_promises_what_was_simulated():
    result = GateResult("a", "b", "one", "two", rows=())
    assert (result.false_alarm_rate, result.confidence) == (MOST_FALSE, 0.99)
    assert result.as_json()["false_alarm_rate"] == MOST_FALSE
