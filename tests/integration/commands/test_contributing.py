"""The worked examples of CONTRIBUTING.md, applied to a copy of the package as they stand."""

import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tests.builders.repository.documents import BLOCK, ROOT
from tests.builders.repository.imports import FLOORS, imported
from tests.conftest import PATIENCE_S, ran
from tests.forks import forks

GUIDE = (ROOT / "CONTRIBUTING.md").read_text()
GALLERY = ROOT / "reports" / "gallery" / "ddp-2-cores"
EXAMPLES = {
    title: BLOCK.findall(text)
    for title, _, text in (part.partition("\n") for part in GUIDE.split("\n### ")[1:])
}
PRIORITY = """
import os, torch
from scalebench import Shard, Workload

def workload(shard: Shard) -> Workload:
    assert os.getpriority(os.PRIO_PROCESS, 0) == 19, "not in the background"
    points = torch.randn(256, 8, generator=torch.Generator().manual_seed(shard.seed))
    batches = points[shard.rank :: shard.world_size].split(shard.batch_size)
    return Workload(torch.nn.Linear(8, 1), batches, lambda module, x: module(x).square().mean())
"""

GARBAGE = """
import gc, torch
from scalebench import Shard, Workload

gc.freeze()
kept = [[i] for i in range(100_000)]

def workload(shard: Shard) -> Workload:
    points = torch.randn(256, 8, generator=torch.Generator().manual_seed(shard.seed))
    batches = points[shard.rank :: shard.world_size].split(shard.batch_size)

    def loss(module, x):
        gc.collect()
        return module(x).square().mean()

    return Workload(torch.nn.Linear(8, 1), batches, loss)
"""
SCRIPT = """
import gc, torch, torch.distributed as dist

dist.init_process_group("gloo")
gc.freeze()
kept = [[i] for i in range(100_000)]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(800):
    gc.collect()
    model(torch.randn(16, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def hunks(diff):
    """Return what each hunk of a diff finds, and what it puts there."""
    parts = [part.splitlines(keepends=True) for part in diff.split("@@\n")]
    return [
        (
            "".join(line[1:] for line in lines if line[0] in " -"),
            "".join(line[1:] for line in lines if line[0] in " +"),
        )
        for lines in parts
    ]


def apply(title, root):
    """Apply an example's blocks below ``root``; return how many lines it adds."""
    added = 0
    for language, body in EXAMPLES[title]:
        first, _, rest = body.partition("\n")
        target = root / first.removeprefix("# ")
        if language == "python":
            assert not target.exists(), target
            target.write_text(rest)
            added += len(rest.splitlines())
        elif language == "diff":
            text = target.read_text()
            for before, after in hunks(rest):
                assert text.count(before) == 1, f"{first} has this not once:\n{before}"
                text = text.replace(before, after)
            target.write_text(text)
            added += len(re.findall(r"^\+", rest, re.M))
    return added


def fresh_copy(folder):
    """Copy what the examples change."""
    for name in ("scalebench", "suites"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    folder = fresh_copy(tmp_path_factory.mktemp("extended"))
    for title in EXAMPLES:
        apply(title, folder)
    return folder


@pytest.fixture
def scalebench(extended, project):
    """Run the command line of the copy in an empty folder; it has to succeed."""

    def run(*arguments):
        there = {**os.environ, "PYTHONPATH": str(extended)}
        copy = forks(package=extended)
        done = copy.run("scalebench", arguments, project, PATIENCE_S, there)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run


def documented(title):
    (console,) = [body for language, body in EXAMPLES[title] if language == "console"]
    return shlex.split(console.removeprefix("$ scalebench "))


def rows(project):
    summary = json.loads((project / "reports" / "latest" / "summary.json").read_text())
    return {(row["case"], row["world_size"]): row for row in summary["rows"]}


def test_the_guide_answers_for_every_extension_point():
    asked = re.findall(r"\(#([a-z-]+)\)", GUIDE)
    assert asked == [title.lower().replace(" ", "-") for title in EXAMPLES]
    assert len(asked) == 8


@pytest.mark.parametrize("title", EXAMPLES)
def test_an_example_stands_by_itself(title, tmp_path):
    assert apply(title, fresh_copy(tmp_path)) < 60


def test_the_examples_pass_the_linters_and_import_from_lower_floors(extended):
    for tool in (["check", "--ignore", "D"], ["format", "--check"]):
        ran([sys.executable, "-m", "ruff", *tool, "--no-cache", "."], cwd=extended, code=0)
    floor = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
    written = [path.relative_to(extended) for path in (extended / "scalebench").rglob("*.py")]
    for path in (path for path in written if not (ROOT / path).exists()):
        names = [name.split(".") for name in imported((extended / path).read_text())]
        used = {name[1] for name in names if name[0] == "scalebench"}
        assert all(floor[room] <= floor[path.parts[1]] for room in used), path


def test_a_strategy_is_verified(project, scalebench):
    assert "flat" in scalebench(*documented("A strategy")).stdout
    for n in (1, 2):
        row = rows(project)["flat", n]
        assert (row["status"], row["strategy"]) == ("ok", "flat")
        assert row["correctness"]["status"] == "verified"
    assert {found["kind"] for found in row["communication"]} == {"all_reduce"}
    assert row["predicted_step_s"] is not None
    listed = json.loads(scalebench("list", "--json").stdout)
    (about,) = [e["about"] for e in listed["strategies"] if e["name"] == "flat"]
    assert about == "one all-reduce of all gradients after the backward pass"


def test_a_workload_trains(project, scalebench):
    scalebench(*documented("A workload"), "--no-trace")
    row = rows(project)["ddp", 2]
    assert (row["workload"], row["num_parameters"]) == ("linear", 65)
    assert row["correctness"]["status"] == "verified"
    assert row["loss_last"] < row["loss_first"]


def test_a_launcher_is_offered_and_starts_ranks(project, scalebench):
    assert "background" in scalebench("run", "--help").stdout
    listed = json.loads(scalebench("list", "--json").stdout)
    assert "background" in {entry["name"] for entry in listed["launchers"]}
    (project / "priority.py").write_text(PRIORITY)
    scalebench(*documented("A launcher"), "--workload", "priority:workload", "--no-trace")
    assert rows(project)["ddp", 2]["correctness"]["status"] == "verified"
    run = json.loads((project / "reports" / "latest" / "run.json").read_text())
    assert (run["spec"]["launcher"], run["spec"]["shared"]) == ("background", True)


def test_a_figure_is_on_the_page_a_rule_speaks_and_an_exporter_writes(project, scalebench):
    shutil.copytree(GALLERY, project / "reports" / "run")
    page = Path(project, scalebench("report", "reports/run").stdout.strip()).read_text()
    assert "N=2 trains the most samples per second" in page
    assert '"figure":"throughput"' in page
    told = " ".join(scalebench("show", "--verbose", "reports/run").stdout.split())
    assert "Try static_graph=True, if your graph never changes: idle takes 5.7" in told
    format_option = documented("An exporter")
    scalebench(format_option[0], "reports/run", *format_option[1:])
    header, *lines = (project / "rows.tsv").read_text().splitlines()
    assert header == "row\tfield\tvalue"
    values = {tuple(line.split("\t")[:2]): float(line.split("\t")[2]) for line in lines}
    speedup = values["ddp/ddp N=2 [gpt-tiny, strong, cpu]", "speedup"]
    assert speedup == pytest.approx(1.658, abs=5e-4)


def test_a_part_of_the_budget_and_a_number_of_each_rank_are_entered_in_few_places():
    most = {"A part of the loss budget": 8, "A number that each rank measures": 6}
    for title, number in most.items():
        firsts = {body.partition("\n")[0].removeprefix("# ") for _, body in EXAMPLES[title]}
        assert len({first for first in firsts if first.startswith("scalebench/")}) <= number


@pytest.mark.parametrize("of_a_script", [False, True])
def test_a_part_and_a_number_are_measured_in_workloads_and_scripts(
    of_a_script, project, scalebench
):
    (project / "garbage.py").write_text(GARBAGE)
    (project / "train.py").write_text(SCRIPT)
    arguments = documented("A part of the loss budget")
    if of_a_script:
        scalebench("run", "--gpus", "1,2", "--quick", "--no-report", "--", "train.py")
    else:
        scalebench(*arguments, "--workload", "garbage:workload")
    row = next(row for (_, n), row in rows(project).items() if n == 2)
    budget = row["budget"]
    assert isinstance(budget, dict)
    assert budget["garbage_s"] > 1e-4  # a look at 100,000 lists, however long the step is
    assert all(rank["garbage_s"] > 0 for rank in budget["ranks"])
    assert isinstance(row["page_faults"], int) and row["page_faults"] > 0
    assert "garbage" in scalebench("show", "--verbose").stdout
    scalebench(*documented("A number that each rank measures"))
    assert "page_faults" in (project / "rows.csv").read_text()
