"""Tools that people start jobs with: what docs/clusters.md has, by each tool's own program."""

import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from tests.builders.repository.documents import ROOT, blocks, commands
from tests.builders.repository.frameworks import PYTHON, TOOLS, need
from tests.conftest import ran
from tests.examples import cases
from tests.integration.conftest import row_of

PAGE = "docs/clusters.md"
ONE_CASE = ("--only", "ddp.ddp.n2", "--no-report")
SHORT = {f"SCALEBENCH_{name}": value for name, value in
         {"QUICK": "1", "STEPS": "4", "NO_TRACE": "1", "WORKLOAD": "mlp-tiny"}.items()}  # fmt: skip


def done_in(folder, words, **variables):
    path = f"{Path(words[0]).parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    told = {**os.environ, **SHORT, "PATH": path, "HOME": str(folder), **variables}
    done = ran(words, cwd=folder, env=told, code=0)
    return done.stdout + done.stderr


def with_words(program, *words):
    assert program.count('"1,2"') == 1
    return program.replace('"1,2"', ", ".join(f'"{word}"' for word in ("1,2", *words)))


def check(run):
    row = row_of(run, "ddp", 2)
    assert (row["status"], row["correctness"]["status"]) == ("ok", "verified"), row


@pytest.fixture
def short_name():
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_the_workers_of_ray_are_a_world(project, short_name):
    need(PYTHON, "ray", "tensorboardX")
    program, _ = blocks(PAGE, "python")
    short = with_words(program, *ONE_CASE)
    (project / "on_ray.py").write_text(f"import ray\nray.init(include_dashboard=False)\n{short}")
    quiet = {"RAY_TMPDIR": short_name, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT)}
    quiet["RAY_prestart_worker_first_driver"] = "0"
    said = done_in(project, [PYTHON, "on_ray.py"], **quiet)
    assert "2 ranks on 1 node (1 x 2), started by environment" in said
    check(project / "on-ray")


def test_torchx_starts_the_ranks_with_its_own_component(project):
    need(PYTHON, "torchx")
    (line,) = re.findall(r"^torchx (.*)$", "\n".join(blocks(PAGE, "sh")), re.M)
    words = [PYTHON.with_name("torchx"), *shlex.split(line), *ONE_CASE, "--out", "r"]
    said = done_in(project, words, PYTHONPATH=str(ROOT))
    assert "2 ranks on 1 node (1 x 2), started by torchrun" in said
    check(project / "r")


SKY = """
import json, sky
task = sky.Task.from_yaml("task.yaml")
(machine,) = task.resources
print("READ", json.dumps([task.name, task.num_nodes, machine.accelerators, sorted(task.secrets)]))
"""


def test_skypilot_takes_the_task(scalebench, project):
    need(TOOLS, "sky")
    (example,) = (one for one in commands(PAGE) if "--skypilot" in one)
    (project / "task.yaml").write_text(scalebench(*example).stdout)
    said = done_in(project, [TOOLS, "-c", SKY])
    (read,) = re.findall("^READ (.*)$", said, re.M)
    assert json.loads(read) == ["scalebench", 2, {"H100": 8}, ["SCALEBENCH_SECRET"]]


def test_reframe_runs_its_recipe(project):
    need(TOOLS, "reframe")
    _, recipe = blocks(PAGE, "python")
    rows = with_words(recipe, "--only", "ddp.plain.n1", *ONE_CASE)
    (project / "scaling.py").write_text(rows)
    said = done_in(project, [TOOLS.with_name("reframe"), "-c", "scaling.py", "-r"])
    assert re.search(r"Ran 1/1 test case\(s\) from 1 check\(s\) \(0 failure", said), said
    assert re.search(r"efficiency: 0\.\d+ of ideal|efficiency: 1\.\d+ of ideal", said), said


@cases("shown", "97 ± 17 %", "33.3 (25.0–44.4) %", "100 %")
def test_ramble_finds_the_efficiency_of_a_row(shown):
    """Ramble, which matches from a line's start, is not on the index: its recipe ran by hand."""
    (recipe,) = blocks(PAGE, "py")
    wanted = re.search(r'fom_regex=r"(.*)", group_name="(\w+)"', recipe)
    assert wanted
    line = f"ddp   2   99 ms     162    0.67×  {shown}  21.6 MB  ✓ verified  f b"
    found = re.compile(wanted[1]).match(line)
    assert found and found[wanted[2]] == shown.split()[0]
