"""The action and the documented CI jobs: valid by the published schemas, and their scripts run."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.builders.gated import gated_run
from tests.builders.repository.documents import blocks
from tests.conftest import ran

ROOT = Path(__file__).parents[3]
EXPRESSION = re.compile(r"\$\{\{ *(.*?) *\}\}")

STAND_IN = """#!{python}
import os, shutil, sys
with open("calls", "a") as file:
    print(*sys.argv[1:], sep="|", file=file)
if sys.argv[1:4] == ["-m", "scalebench", "run"]:
    out = sys.argv[sys.argv.index("--out") + 1]
    shutil.copytree("measured", out)
    sys.exit(int(os.environ.get("RUN_CODE", "0")))
if sys.argv[1:3] == ["-m", "pip"]:
    sys.exit(0)
os.execv("{python}", ["{python}", *sys.argv[1:]])
"""
"""A Python for which "measured" is what a run leaves, and pip installs nothing."""


def yaml(text):
    return YAML(typ="safe").load(text)


def test_the_action_and_the_jobs_are_valid(tmp_path):
    workflow, gitlab = blocks("docs/ci.md", "yaml")
    (tmp_path / "workflow.yml").write_text(workflow)
    (tmp_path / ".gitlab-ci.yml").write_text(gitlab)
    for kind, path in (
        ("github-actions", ROOT / "action.yml"),
        ("github-workflows", tmp_path / "workflow.yml"),
        ("gitlab-ci", tmp_path / ".gitlab-ci.yml"),
    ):
        told = ("--builtin-schema", f"vendor.{kind}", str(path))
        ran([sys.executable, "-m", "check_jsonschema", *told], code=0)


def test_the_documented_job_gives_inputs_that_there_are_and_its_baseline_is_of_a_push():
    """A fork's branch may be called main too; only who is trusted pushes to this repository."""
    inputs = yaml((ROOT / "action.yml").read_text())["inputs"]
    steps = yaml(blocks("docs/ci.md", "yaml")[0])["jobs"]["scaling"]["steps"]
    (given,) = [step["with"] for step in steps if step.get("uses") == "./"]
    assert set(given) <= set(inputs)
    documented = (ROOT / "docs" / "ci.md").read_text()
    assert all(f"`{name}`" in documented for name in inputs)
    (asked,) = [step["run"] for step in steps if "gh run" in step.get("run", "")]
    assert {"--event push", "--branch main"} <= set(re.findall(r"--\S+ \w+", asked))


def test_no_input_is_pasted_into_a_script():
    """An input in the text of a script is a command that a pull request's author can write."""
    for step in yaml((ROOT / "action.yml").read_text())["runs"]["steps"]:
        assert not EXPRESSION.search(step["run"]), step["name"]


class Action:
    """Runs the steps of the action as the runner does, in a folder."""

    def __init__(self, folder):
        self.folder = folder
        self.action = yaml((ROOT / "action.yml").read_text())
        python = folder / "python"
        python.write_text(STAND_IN.format(python=sys.executable))
        python.chmod(0o755)

    def __call__(self, **inputs):
        """Return the exit code of the last step that ran, and the outputs of the action."""
        known = {name: one["default"] for name, one in self.action["inputs"].items()}
        given = {name.replace("_", "-"): value for name, value in inputs.items()}
        self.values = {f"inputs.{name}": value for name, value in (known | given).items()}
        self.values |= {"github.action_path": str(ROOT), "inputs.python": "./python"}
        code = next(filter(None, map(self._step, self.action["runs"]["steps"])), 0)
        outputs = self.action["outputs"].items()
        return code, {name: self._filled(one["value"]) for name, one in outputs}

    def _step(self, step):
        output = self.folder / "output"
        output.write_text("")
        script = self.folder / "script"
        script.write_text(step["run"])
        environment = {name: self._filled(text) for name, text in step["env"].items()}
        assert step["shell"] == "bash"
        done = ran(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=self.folder,
            env={
                **{"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "GITHUB_OUTPUT": str(output)},
                **{"GITHUB_STEP_SUMMARY": str(self.folder / "summary.md"), "HOME": "/nowhere"},
                **environment,
                **self.extra,
            },
        )
        self.printed += done.stdout + done.stderr
        for line in output.read_text().splitlines():
            name, _, value = line.partition("=")
            self.values[f"steps.{step.get('id')}.outputs.{name}"] = value
        return done.returncode

    def _filled(self, text):
        def value(found):
            return next(filter(None, map(self.values.get, found[1].split(" || "))), "")

        return EXPRESSION.sub(value, str(text))

    printed = ""
    extra: dict[str, str] = {}  # noqa: RUF012


def leave(folder, summary):
    """Put there what a run leaves, as far as the gate and the summary of the job read it."""
    folder.mkdir()
    (folder / "summary.json").write_text(summary.model_dump_json())
    (folder / "summary.md").write_text("### what was measured\n")


@pytest.fixture
def action(tmp_path, monkeypatch):
    leave(tmp_path / "base", gated_run(seed=1))
    return Action(tmp_path)


def calls(action):
    lines = (action.folder / "calls").read_text().splitlines()
    return [line.split("|") for line in lines]


def test_the_action_passes_what_is_as_before(action):
    leave(action.folder / "measured", gated_run(seed=2))
    code, outputs = action(
        suites="ddp fsdp",
        gpus="1,2",
        arguments="--repeats 5 -k *",
        baseline="base",
        gate_arguments="--all",
    )
    assert (code, outputs) == (0, {"run": "scalebench-run", "exit-code": "0"}), action.printed
    pip, version, run, gate = calls(action)
    assert pip[:3] == ["-m", "pip", "install"] and pip[-1] == str(ROOT)
    assert version == ["-m", "scalebench", "--version"]
    assert run == [
        *("-m", "scalebench", "run", "ddp", "fsdp", "--gpus", "1,2", "--out", "scalebench-run"),
        *("--repeats", "5", "-k", "*"),
    ]
    assert gate[2:] == [
        *("gate", "scalebench-run", "--baseline", "base", "--format", "github"),
        *("--on-inconclusive", "warn", "--all"),
    ]
    assert "::notice title=scalebench gate::passed" in action.printed
    summary = (action.folder / "summary.md").read_text()
    assert summary.startswith("### what was measured\n")
    assert "### scalebench gate: passed" in summary


def test_the_action_fails_what_is_slower(action):
    leave(action.folder / "measured", gated_run({("ddp", 4): 1.1}, seed=2))
    code, outputs = action(baseline="base", install="false")
    assert (code, outputs["exit-code"]) == (1, "1"), action.printed
    assert "::error title=slower%3A ddp%2C N=4%2C step time::" in action.printed
    assert not any("pip" in call for call in calls(action))


@pytest.mark.parametrize(("choice", "code"), [({}, 0), ({"on_inconclusive": "fail"}, 3)])
def test_noise_alone_fails_only_where_that_is_wanted(action, choice, code):
    leave(action.folder / "measured", gated_run(num_launches=2, launch_sd=0.2, seed=2))
    found, outputs = action(baseline="base", gate_arguments="--need 3%", **choice)
    assert ("::error" in action.printed) == (code != 0)
    assert (found, outputs["exit-code"]) == (code, str(code)), action.printed
    assert "### scalebench gate: inconclusive" in (action.folder / "summary.md").read_text()
    assert ("--on-inconclusive warn lets it pass" in action.printed) == (code == 0)


def test_without_a_baseline_nothing_is_judged_and_one_that_is_not_there_is_an_error(action):
    leave(action.folder / "measured", gated_run(seed=2))
    assert action()[0] == 0
    assert not any("gate" in call for call in calls(action))
    shutil.rmtree(action.folder / "scalebench-run")
    code, outputs = action(baseline="nowhere")
    assert (code, outputs["exit-code"]) == (2, "2")


@pytest.mark.parametrize(("run_code", "code"), [("4", 4), ("2", 2), ("5", 5), ("70", 70)])
def test_a_run_that_failed_fails_the_action(action, run_code, code):
    leave(action.folder / "measured", gated_run(seed=2))
    action.extra = {"RUN_CODE": run_code}
    found, outputs = action(baseline="base", on_inconclusive="warn")
    assert (found, outputs["exit-code"]) == (code, run_code)
    judged = any("gate" in call for call in calls(action))
    assert judged == (run_code == "4")


def test_an_input_is_never_a_command(action):
    leave(action.folder / "measured", gated_run(seed=2))
    attack = "$(touch pwned) `touch pwned`; touch pwned"
    action(suites=attack, arguments=attack, gpus=attack, baseline=attack, gate_arguments=attack)
    assert not (action.folder / "pwned").exists()
    assert "$(touch" in (action.folder / "calls").read_text()


def test_the_script_of_the_gitlab_job(action):
    """The exit code is that of the gate, and every report is there."""
    leave(action.folder / "measured", gated_run(seed=2))
    _, gitlab = blocks("docs/ci.md", "yaml")
    job = yaml(gitlab)["scaling"]
    folder = action.folder
    shutil.copytree(folder / "base", folder / "reports" / "baselines" / "ci")
    stand_in = folder / "bin"
    stand_in.mkdir()
    (stand_in / "scalebench").write_text('#!/bin/sh\nexec ./python -m scalebench "$@"\n')
    (stand_in / "pip").write_text("#!/bin/sh\n")
    for file in stand_in.iterdir():
        file.chmod(0o755)
    script = "\n".join(line for line in job["script"] if "export" not in line)
    ran(
        ["bash", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env={"PATH": f"{stand_in}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": "/nowhere"},
        code=0,
    )
    assert "<testsuites" in (folder / "gate.xml").read_text()
    assert job["allow_failure"]["exit_codes"] == [3]
    exported = [line.split()[-1] for line in job["script"] if "export" in line]
    named = [*job["artifacts"]["reports"]["junit"], job["artifacts"]["reports"]["metrics"]]
    assert set(exported) | {"gate.xml"} == set(named)
    json.loads((folder / "run" / "summary.json").read_text())
