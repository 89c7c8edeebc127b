"""Versions that wait between their rounds: one run each, asked for round after round."""

import json
import sys
from pathlib import Path

import pytest

from scalebench.records.files import write_model
from scalebench.session.interleaved.ab_runs import InterleavedRuns, Version, in_rounds_of_both
from tests.builders.gated import gated_run

STUB = """#!{python}
import json, os, pathlib, sys
sys.path.insert(0, {source!r})
from scalebench.session.interleaved.connection import RoundRequests
here = pathlib.Path(__file__).parent
behaviour = json.loads((here / "behaviour.json").read_text())
requests = RoundRequests.from_environment()
arguments = sys.argv[1:]
out = pathlib.Path(arguments[arguments.index("--out") + 1])
out.mkdir(parents=True)

def note(what):
    with (here.parent / "calls.jsonl").open("a") as log:
        log.write(json.dumps([here.name, what]) + "\\n")

note("start" if requests else "start alone")
made = 0
only = []
while True:
    made += 1
    (out / "summary.json").write_text((here / f"{{made}}.json").read_text())
    if requests is None:
        break
    requests.report(behaviour.get("separate"))
    only = requests.wait()
    if only is None:
        note("end")
        break
    note(only)
"""
"""Stands for an interpreter whose run waits; its n-th round leaves a summary of n launches."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("base", "new"):
        folder = tmp_path / name
        folder.mkdir()
        for launches in range(1, 5):
            run = gated_run(num_launches=launches, seed=launches)
            write_model(folder / f"{launches}.json", run)
        stub = folder / "python"
        source = str(Path(__file__).parents[4])
        stub.write_text(STUB.format(python=sys.executable, source=source))
        stub.chmod(0o755)
        behave(tmp_path, name)
    return tmp_path


def behave(place: Path, name: str, **behaviour: object) -> None:
    (place / name / "behaviour.json").write_text(json.dumps(behaviour))


def runs(place: Path, **more: bool) -> InterleavedRuns:
    base, new = (Version(name, str(place / name / "python"), place) for name in ("base", "new"))
    return InterleavedRuns((base, new), ["ddp", "--gpus", "1,2"], place / "out", **more)


def calls(place: Path) -> list[list[object]]:
    return [json.loads(line) for line in (place / "calls.jsonl").read_text().splitlines()]


def test_each_version_is_one_run_that_is_asked_by_turns(place: Path) -> None:
    with runs(place) as interleaved:
        interleaved.measure(3)
        interleaved.measure(3)
        interleaved.measure(3, ["ddp.ddp.n2", "ddp.plain.n1"])
        base, new = interleaved.results()
    further = ["ddp.ddp.n2", "ddp.plain.n1"]
    assert calls(place) == [
        *(["base", "start"], ["new", "start"]),
        *(["new", []], ["base", []]),
        *(["base", further], ["new", further]),
        *(["base", "end"], ["new", "end"]),
    ]
    assert sorted(path.name for path in (place / "out").glob("*-*[0-9]")) == ["base-0", "new-0"]
    for results in (base, new):
        assert {len(row.samples) for row in results.rows} == {3}
        assert results.summaries[0].status == "complete"


@pytest.mark.parametrize("who", ["base", "new"])
def test_where_one_cannot_go_on_each_round_of_both_is_a_run(place: Path, who: str) -> None:
    behave(place, who, separate="each launch of a race has another seed")
    with runs(place) as interleaved:
        interleaved.measure(2)
        interleaved.measure(2)
        base, new = interleaved.results()
    made = [call for call in calls(place) if call[1] != "end"]
    first = ["base", "start"], ["new", "start" if who == "new" else "start alone"]
    assert made == [*first, ["new", "start alone"], ["base", "start alone"]]
    assert {row.step_s.n for row in (*base.rows, *new.rows) if row.step_s} == {2}


def test_only_launches_of_the_same_round_are_compared() -> None:
    base, new = gated_run(num_launches=4, seed=1), gated_run(num_launches=3, seed=2)
    lost = new.rows[1].model_copy(update={"samples": new.rows[1].samples[1:]})
    new = new.model_copy(update={"rows": [new.rows[0], lost, *new.rows[2:]]})
    for kept in in_rounds_of_both(base, new):
        numbers = [[sample.repeat for sample in row.samples] for row in kept.rows]
        assert numbers == [[0, 1, 2], [1, 2], *[[0, 1, 2]] * 3]
        assert [row.case for row in kept.rows] == [row.case for row in base.rows]
