"""The pytest door with real ranks, as the documentation has it."""

import json
import os
import re
import shlex
import sys
from importlib.metadata import entry_points

import pytest

from tests.builders.repository.documents import ROOT, blocks
from tests.conftest import ran

DOOR = (
    () if entry_points(group="pytest11", name="scalebench") else ("-p", "scalebench.pytest_plugin")
)

SUITE = """
from scalebench import Case, Ddp, StepPlan, Suite

SUITE = Suite(
    name="tiny",
    question="Does the door open?",
    cases=(Case(name="ddp", strategy=Ddp()),),
    workload="mlp-tiny",
    steps=StepPlan(steps=8, trace=False),
    repeats=2,
)
"""

EASIER = {
    **{"> 0.9": "> 0.001", "< 0.1": "< 1000"},
    **{'workload="gpt", steps=12': 'workload="mlp-tiny", steps=12, trace=False'},
}
"""What is changed of the documented test: no claim about this machine, and less to train."""


def run_pytest(folder, *arguments):
    # These tests may run beside others; what they start is alone.
    alone = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")}
    return ran(
        [sys.executable, "-m", "pytest", *DOOR, *arguments],
        cwd=folder,
        env={**alone, "PYTHONPATH": str(ROOT), "COLUMNS": "160"},
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """One session in a folder with a suite, and with the documented test."""
    folder = tmp_path_factory.mktemp("door")
    (folder / "suites").mkdir()
    (folder / "suites" / "tiny.py").write_text(SUITE)
    (program,) = blocks("docs/pytest.md", "python")
    for documented_one, here in EASIER.items():
        assert documented_one in program
        program = program.replace(documented_one, here)
    (folder / "test_mine.py").write_text(program)
    (folder / "pytest.ini").write_text("[pytest]\n")
    flags = ("--gpus", "1,2", "--benchmark-autosave", "-v", "-p", "no:cacheprovider")
    done = run_pytest(folder, "suites/", "test_mine.py", *flags)
    assert done.returncode == 0, done.stdout
    return folder, done.stdout


def documented():
    lines = "\n".join(blocks("docs/pytest.md", "console")).splitlines()
    return [shlex.split(line)[2:] for line in lines if line.startswith("$ pytest ")]


def test_ranks_train_and_their_steps_are_the_rounds(measured):
    folder, printed = measured
    for name in ("suites/tiny.py::ddp[n1]", "suites/tiny.py::ddp[n2]", "test_mine.py::test_ddp"):
        assert re.search(rf"{re.escape(name)}\S* PASSED", printed), printed
    (saved,) = folder.glob(".benchmarks/*/*.json")
    kept = {b["fullname"]: b for b in json.loads(saved.read_text())["benchmarks"]}
    rows = {
        (row["suite"], row["world_size"]): row
        for path in folder.glob("reports/*_*/summary.json")
        for row in json.loads(path.read_text())["rows"]
        if row["case"] == "ddp"
    }
    assert set(rows) == {(suite, n) for suite in ("tiny", "pytest") for n in (1, 2)}
    for n in (1, 2):
        bench = kept[f"suites/tiny.py::ddp[n{n}]"]
        steps = [s for launch in rows["tiny", n]["samples"] for s in launch["step_s"]]
        assert bench["stats"]["rounds"] == len(steps) == 16
        assert bench["stats"]["max"] == max(steps)
        told = bench["extra_info"]["row"]
        assert told["correctness"]["status"] == "verified"
        assert told["step_s"] == rows["tiny", n]["step_s"]
    assert kept["test_mine.py::test_ddp_scales"]["group"] == "pytest"


def test_the_documented_commands(measured):
    """The second is that of the fixture; the third has the first in it."""
    folder, _ = measured
    (run,) = folder.glob("reports/*_tiny_*")
    plain, saving, comparing = documented()
    assert set(plain) <= set(comparing)
    assert set(saving) - set(plain) == {"--benchmark-autosave"}
    done = run_pytest(folder, *comparing, f"--scaling-run={run}", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_the_documented_failure_is_that_of_the_committed_run(tmp_path):
    (shown,) = blocks("docs/pytest.md", "text")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(
        "def test_it(scaling):\n    assert scaling('ddp/ddp').efficiency(2) > 0.99\n"
    )
    gallery = ROOT / "reports" / "gallery" / "ddp-2-cores"
    done = run_pytest(tmp_path, f"--scaling-run={gallery}", "-p", "no:cacheprovider")
    assert done.returncode == 1
    assert shown.strip() in done.stdout
