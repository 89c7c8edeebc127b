"""Accepted baselines: names of machines, files, and what is listed of them."""

import pytest

from scalebench.errors import UsageError
from scalebench.gate.baselines import Baseline, accept, list_baselines, machine_name
from scalebench.gate.results import Results
from tests.builders.summaries import estimate, make_row, make_summary


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"devices": [{"name": "A"}, {"name": "B"}], "cores": 3, "cpu": "C"}, "2x-a"),
        ({"devices": [], "cores": 3, "cpu": "C"}, "3-cores-c"),
        ({"devices": None, "cpu": None}, "cores-unknown"),
        ({"cores": 3, "cpu": "Xeon(R) (TM) +9"}, "3-cores-xeon-9"),
        ({"cores": 3, "cpu": "x" * 80}, "3-cores-" + "x" * 52),
        ({"cores": 3, "cpu": "x" * 51 + " y"}, "3-cores-" + "x" * 51),
        ({"cores": 3, "cpu": "x" * 50 + " y"}, "3-cores-" + "x" * 50 + "-y"),
    ],
)
def test_names_of_machines_have_at_most_sixty_characters(environment, name):
    assert machine_name(environment) == name and len(name) <= 60


def run(number, *rows, **changes):
    made = list(rows) or [make_row()]
    return make_summary(made, **{"run_id": f"run-{number}", "created": f"day {number}", **changes})


def add(summary, machine="ci"):
    return accept(Results("run", (summary,)), machine, add=True)


def test_what_is_listed(project):
    rows = [
        make_row("few", step_s=estimate(0.1, n=2)),
        make_row("many", step_s=estimate(0.1, n=7)),
        make_row("none", step_s=None),
    ]
    (first,) = accept(Results("run", (run(1, *rows),)), "ci")
    assert first == first.parent / "ddp.json" and first.parent.name == "ci"
    for number in range(2, 11):
        (path,) = add(run(number))
        assert path == first.parent / "ddp" / f"{number}.json"
    (eleventh,) = add(run(11))
    assert eleventh.name == "11.json", "after 10, by number"
    assert list_baselines() == [
        Baseline("ci", "ddp", "run-1", "day 1", 3, 2, str(first), num_runs=11)
    ]
    assert list_baselines(project) == []
    (other,) = add(run(1, make_row(step_s=None)), "another")
    listed = list_baselines()
    assert listed[0] == Baseline("another", "ddp", "run-1", "day 1", 1, 0, str(other), 1)
    assert Baseline(*["x"] * 4, 1, 1, "x").num_runs == 1
    assert accept(Results("run", (run(12),)), "ci") == [first]
    assert [one.num_runs for one in list_baselines()] == [1, 1]


@pytest.mark.parametrize(
    ("rows", "status", "why"),
    [
        ([("ok", 2)], "complete", ""),
        ([("ok", 2), ("skipped", 3)], "complete", ""),
        ([("skipped", 2), ("skipped", 3)], "complete", "nothing was measured in it"),
        ([("ok", 2), ("oom", 3)], "complete", "ddp-25mb at N=3 is oom"),
        ([("failed", 5), ("oom", 3)], "interrupted", "ddp-25mb at N=5 is failed"),
        ([("ok", 2)], "interrupted", "the run is interrupted"),
    ],
)
def test_a_baseline_has_no_holes(project, rows, status, why):
    made = [make_row(world_size=size, status=told) for told, size in rows]
    if not why:
        assert accept(Results("run", (run(1, *made, status=status),)), "ci")
        return
    with pytest.raises(UsageError, match=why):
        accept(Results("run", (run(1, *made, status=status),)), "ci")
