import json
import sys

import pytest

from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.records.files import write_model
from scalebench.session.interleaved.ab_runs import InterleavedRuns, Version
from tests.builders.gated import gated_run
from tests.examples import cases

STUB = """#!{python}
import json, pathlib, sys
here = pathlib.Path(__file__).parent
arguments = sys.argv[1:]
with (here.parent / "calls.jsonl").open("a") as log:
    log.write(json.dumps([here.name, *arguments]) + "\\n")
if "--fail" in arguments:
    print("scalebench: There is no suite 'x'.", file=sys.stderr)
    sys.exit(int(arguments[arguments.index("--fail") + 1]))
out = pathlib.Path(arguments[arguments.index("--out") + 1])
number = int(out.name.rpartition("-")[2])
out.mkdir(parents=True)
summary = json.loads((here / f"{{number}}.json").read_text())
only = {{value for flag, value in zip(arguments, arguments[1:]) if flag == "--only"}}
if only:
    name = "{{suite}}.{{case}}.n{{world_size}}"
    summary["rows"] = [row for row in summary["rows"] if name.format(**row) in only]
(out / "summary.json").write_text(json.dumps(summary))
"""
"""Stands for an interpreter with scalebench: leaves a run made before, and notes the call."""


@pytest.fixture
def interpreters(project):
    drift = [1.0, 1.1, 1.2, 1.15, 1.05, 1.1, 1.0, 1.02]
    for seed, (name, factor) in enumerate({"base": 1.0, "same": 1.0, "slow": 1.04}.items()):
        folder = project / name
        folder.mkdir()
        for number, level in enumerate(drift):
            slower = {(case, n): factor * level for case in ("ddp", "ddp-small") for n in (2, 4)}
            slower["plain", 1] = level
            run = gated_run(slower, num_launches=1, seed=100 * seed + number)
            write_model(folder / f"{number}.json", run)
        stub = folder / "python"
        stub.write_text(STUB.format(python=sys.executable))
        stub.chmod(0o755)
    return project


def calls(project):
    return [json.loads(line) for line in (project / "calls.jsonl").read_text().splitlines()]


@pytest.fixture
def interleaved(interpreters):
    def make(new, words, on_progress=lambda _: None, base=None):
        places = {"base": base or interpreters / "base" / "python"}
        places["new"] = interpreters / new / "python"
        versions = [Version(name, str(place), interpreters) for name, place in places.items()]
        return InterleavedRuns(tuple(versions), words, interpreters / "out", on_progress)

    return make


def test_both_are_measured_by_turns_and_told_the_same(interpreters, interleaved):
    messages = []
    runs = interleaved("slow", ["ddp", "--gpus", "1,2"], messages.append)
    for _ in range(3):
        runs.measure(3)
    made = calls(interpreters)
    assert [call[0] for call in made] == ["base", "slow", "slow", "base", "base", "slow"]
    for call in made:
        assert call[1:7] == ["-m", "scalebench", "run", "ddp", "--gpus", "1,2"]
        assert call[7:10] == ["--repeats", "1", "--no-report"]
    assert messages[0] == "round 1 of 3: base" and len(messages) == 7
    assert messages[1].startswith("each round is a separate run: its scalebench does not wait")
    assert all(row.step_s.n == 3 for results in runs.results() for row in results.rows)


def test_the_command_finds_a_change_that_drift_hides(interpreters, in_process, monkeypatch):
    def gate(new, code):
        monkeypatch.setattr(sys, "executable", str(interpreters / new / "python"))
        flags = ["gate", "--interleave", "--base-python", str(interpreters / "base" / "python")]
        done = in_process(*flags, "--rounds", "6", "--json", "--", "ddp", code=code)
        rows = json.loads(done.stdout)["rows"]
        return {(row["case"], row["metric"]) for row in rows if row["verdict"] == "regressed"}

    worse = gate("slow", 1)
    assert ("ddp", "step_s") in worse and ("plain", "step_s") not in worse
    assert gate("same", 0) == set()
    assert (interpreters / "reports").is_dir()


@cases("code, kind", (2, UsageError), (5, EnvironmentUnfit), (130, EnvironmentUnfit))
def test_a_run_that_ends_badly_ends_the_comparison(interpreters, interleaved, code, kind):
    with pytest.raises(kind, match="There is no suite"):
        interleaved("same", ["--fail", str(code)]).measure(2)
    assert len(calls(interpreters)) == 1


def test_an_interpreter_that_is_not_there_is_refused(interleaved):
    with pytest.raises(UsageError, match="cannot be started"):
        interleaved("same", [], base="/no/python").measure(2)
