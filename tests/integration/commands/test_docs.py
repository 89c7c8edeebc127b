"""Documented commands and programs are run as they stand."""

import json
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from benchmarks import published
from scalebench.records.certificate import Certificate
from scalebench.report.certificate import render_certificate
from scalebench.report.tables.layout import Screen
from scalebench.session.suites import load_suite
from scalebench.spec import Context, Tensor
from tests.builders.repository.documents import BLOCK, NEEDS_GPUS, ROOT, blocks, commands
from tests.conftest import PATIENCE_S, ran
from tests.forks import forks
from tests.integration.conftest import complaint


def assert_is_cut_from(cut, whole):
    """Assert that a text is another one, with lines left out where it has an ellipsis."""
    for piece in filter(None, cut.split("  …\n")):
        _, found, whole = whole.partition(piece.strip("\n"))
        assert found, piece


@pytest.fixture
def short(monkeypatch):
    """Settings of the environment with which documented runs take few steps of a small model."""
    monkeypatch.setenv("SCALEBENCH_STEPS", "4")
    monkeypatch.setenv("SCALEBENCH_WORKLOAD", "mlp-tiny")


def test_the_example_of_an_own_workload(scalebench, project, short):
    program, layers, attention = blocks("docs/workloads.md", "python")
    told = {}
    exec(layers, told)
    assert Tensor(sequence=True, loss=True).why_not_plan(told["PLAN"], 4) is None
    exec(attention, told)
    for method in ("ulysses", "ring"):
        assert Context(method=method).why_not_plan(told["PLAN"], 4) is None
    (project / "my_model.py").write_text(program)
    own, loader = commands("docs/workloads.md")
    done = scalebench(*own, code=0)
    assert done.stdout.count("verified") >= 2

    done = scalebench(*loader, code=0)
    assert "ddp-loader-inline" in done.stdout


def test_the_example_of_an_own_script(scalebench, project, monkeypatch):
    (program,) = blocks("docs/your-script.md", "python")
    (project / "train.py").write_text(program)
    weak, strong = commands("docs/your-script.md")
    done = scalebench(weak[0], "--quick", *weak[1:], code=0)
    assert "batch per rank 64 · cpu over gloo" in done.stdout

    monkeypatch.setenv("SCALEBENCH_BUDGET", "1s")  # what is looked at is there after one launch
    done = scalebench(*strong, code=0)
    assert "strong scaling" in done.stdout and "global batch 128" in done.stdout


def test_the_example_of_ranks_scheduled_as_those_of_suites(tmp_path):
    (program,) = blocks("docs/definitions.md", "python")
    told = "print(os.sched_getscheduler(0) == os.SCHED_BATCH)"
    (tmp_path / "settle.py").write_text(program + told)
    done = ran([sys.executable, "settle.py"], cwd=tmp_path)
    assert done.stdout == "True\n", done.stderr


def test_the_example_of_an_own_suite(scalebench, project, short):
    (suite,) = blocks("docs/suites.md", "python")
    (project / "suites").mkdir()
    (project / "suites" / "buckets.py").write_text(suite)
    strategies, arguments = commands("docs/suites.md")
    planned = scalebench(*strategies, "--dry-run")
    assert re.search(r"^strategies +tensor +2 ", planned.stdout, re.M), planned.stderr
    done = scalebench(*arguments, code=0)
    assert "buckets-1mb-static" in done.stdout


def test_the_program_of_python(project):
    (program,) = blocks("docs/python.md", "python")
    few = program.replace("repeats=2", 'repeats=2, workload="mlp-tiny", quick=True')
    (project / "look.py").write_text(few)  # without a main guard: ranks never run it again
    done = ran([sys.executable, "look.py"], cwd=project, code=0)
    assert "ddp-bucket-1mb 2 ok" in done.stdout and "report.html" in done.stdout
    assert "no change seen" in done.stdout or "unchanged" in done.stdout


def test_the_example_of_a_trace(scalebench, project):
    (program,) = blocks("docs/traces.md", "python")
    (project / "train.py").write_text(program)
    (torchrun,) = re.findall(r"^\$ torchrun (.*)$", blocks("docs/traces.md", "console")[0], re.M)
    done = ran(
        [sys.executable, "-m", "torch.distributed.run", *shlex.split(torchrun)], cwd=project, code=0
    )
    for arguments in commands("docs/traces.md"):
        done = scalebench(*arguments, code=0)
        assert re.search(r"^all_reduce +\d+ +\d+\.\d+ MB", done.stdout, re.M), done.stdout
        assert re.search(r"^backward ", done.stdout, re.M), done.stdout
    assert (project / "overlap.html").exists()


def test_the_table_of_the_traces_is_that_of_the_golden_ones(scalebench, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    golden = ROOT / "tests" / "golden" / "traces"
    done = scalebench("trace", *(str(p) for p in sorted(golden.glob("nccl-sendrecv*.gz"))))
    assert_is_cut_from(blocks("docs/traces.md", "text")[0], done.stdout)


def test_the_examples_of_predictions(scalebench, project):
    run, *projections = commands("docs/predictions.md")
    assert scalebench(*run, "--dry-run").returncode == 0
    shutil.copytree(ROOT / "reports/gallery/ddp-2-cores", project / "reports" / "measured")
    (project / "reports" / "latest").symlink_to("measured")
    for arguments in projections:
        done = scalebench(*arguments, code=0)
    (topology,) = blocks("docs/predictions.md", "toml")
    (project / "mine.toml").write_text(topology)
    done = scalebench("project", "--gpus", "8", "--topology", "mine.toml")
    assert "predicted, not measured" in done.stdout, done.stderr
    for arguments, word in (
        (["--gpus", "1"], "2 ranks or more"),
        (["--gpus", "8", "--topology", "cray"], "Valid"),
        (["--gpus", "8", "--link-profile", "none.json"], "none.json"),
    ):
        assert word in complaint(scalebench("project", *arguments))


def test_the_examples_of_the_search(scalebench, project):
    first, *elsewhere = commands("docs/search.md")
    # The measurement that it would make takes half a minute: a committed one stands for it.
    shutil.copytree(ROOT / "reports/gallery/fsdp-2-cores", project / "reports" / "fsdp-2-cores")
    done = scalebench(*first, code=0)
    assert "measuring it now" not in done.stderr
    assert "probability that the first mesh is the fastest" in done.stdout
    suite = load_suite(str(project / "best.py"))
    assert suite.cases[0].name == "plain" and len(suite.cases) > 1
    planned = scalebench("run", "best.py", "--gpus", "1,2", "--dry-run")
    assert planned.returncode == 0 and suite.cases[1].name in planned.stdout, planned.stderr
    for arguments in elsewhere:
        done = scalebench(*arguments, code=0)
        assert "assumed, not measured" in " ".join(done.stdout.split())


def test_the_published_configurations_are_printed_as_they_come_out():
    _, shown, *_ = blocks("benchmarks/evidence.md", "text")
    assert shown.strip() == published.table().strip()


def test_the_examples_of_the_report(scalebench, project):
    for name in ("first", "second"):
        shutil.copytree(ROOT / "reports/gallery/ddp-2-cores", project / "reports" / name)
    one, two = commands("docs/report.md")
    done = scalebench(*one, code=0)
    page = project / done.stdout.strip()
    assert ">One step</h2>" in page.read_text() and ">Comparison</h2>" not in page.read_text()
    scalebench(*two, code=0)
    assert "Of 7 rows in both runs, 7 show no change." in page.read_text()


def test_a_gallery_is_made_of_the_runs_in_a_folder(scalebench, project):
    shutil.copytree(ROOT / "reports/gallery/ddp-2-cores", project / "shown" / "ddp-2-cores")
    made = forks().run("scalebench.cli.gallery", ["shown"], project, PATIENCE_S)
    assert made.returncode == 0, made.stderr
    assert made.stdout.strip() == "shown/index.html"
    index = (project / "shown" / "index.html").read_text()
    assert '<a href="ddp-2-cores/report.html">How well does DDP scale here' in index
    assert "1.658×" in index and "scalebench run ddp --gpus 1,2" in index
    page = (project / "shown" / "ddp-2-cores" / "report.html").read_text()
    assert '<script defer src="../pages.js">' in page and len(page) < 200_000
    empty = forks().run("scalebench.cli.gallery", ["nothing"], project, PATIENCE_S)
    assert (empty.returncode, len(empty.stderr.splitlines())) == (2, 1)


def test_the_examples_of_a_calibration(scalebench, project):
    golden = ROOT / "tests" / "golden" / "nccl_tests" / "h100_8ranks_then_16ranks_slurm.txt"
    for name in ("all_reduce.log", "all_gather.json"):
        shutil.copy(golden, project / name)
    for arguments in commands("docs/calibration.md"):
        done = scalebench(*arguments, code=0)
        assert "busbw (GB/s)" in done.stdout
        assert "95 % intervals" in done.stdout


def test_the_examples_of_submitting(scalebench):
    done = [scalebench(*example) for example in commands("docs/clusters.md")]
    assert [one.returncode for one in done] == [0] * 5, done[-1].stderr
    slurm, job, train_job, jobset, skypilot = (one.stdout for one in done)
    assert "#SBATCH --nodes=2" in slurm
    assert '"kind": "Job"' in job and '"claimName": "runs"' in job
    assert '"kind": "TrainJob"' in train_job and '"kind": "JobSet"' in jobset
    assert json.loads(skypilot)["resources"]["accelerators"] == "H100:8"


def test_the_certificate_of_the_self_test_is_the_committed_one():
    committed = ROOT / "reports" / "gallery" / "certificate-2-cores.json"
    certificate = Certificate.model_validate_json(committed.read_text())
    (shown,) = blocks("docs/self-test.md", "text")
    assert_is_cut_from(shown, render_certificate(certificate, Screen()))


def test_the_options_of_the_job_for_ci_exist(scalebench):
    (text,) = blocks("docs/virtual-hosts.md", "yaml")
    options = set(re.findall(r"--[a-z-]+", text.partition("run ddp")[2].partition("- name")[0]))
    known = scalebench("run", "--help").stdout
    assert len(options) >= 6
    assert all(option in known for option in options)


def test_commands_of_getting_started(scalebench, short, monkeypatch):
    monkeypatch.setenv("SCALEBENCH_BATCH_SIZE", "2")  # a cnn takes long
    calls = commands("docs/getting-started.md")
    assert len(calls) >= 13
    elsewhere = ["selftest", "--quick"]  # run by tests/lab/test_selftest.py
    assert elsewhere in calls
    for arguments in calls:
        if arguments == elsewhere:
            continue
        fewer = ["-k", "ddp and not (4 or mb)", "--quick"] if "cnn" in arguments else []
        scalebench(*arguments, *fewer, code=0)


def test_the_readme_names_commands_that_the_documents_run():
    (gpus,) = re.findall(r"^\$ scalebench (.*)$", "\n".join(blocks("README.md", "console")), re.M)
    assert NEEDS_GPUS.search(gpus)
    named = re.findall(r"`scalebench ([^`]+)`", (ROOT / "README.md").read_text())
    assert len(named) >= 4
    executed = [
        shlex.join(call)
        for document in (
            *("getting-started", "gate", "import", "self-test", "workloads", "your-script"),
        )
        for call in commands(f"docs/{document}.md")
    ]
    for command in named:
        words = set(shlex.split(command))
        assert any(words <= set(shlex.split(call)) for call in executed), command


def test_make_targets_of_the_readme():
    lines = "\n".join(
        body
        for document in ("README.md", "docs/getting-started.md")
        for body in blocks(document, "console")
    ).splitlines()
    targets = {shlex.split(ln[2:], comments=True)[1] for ln in lines if ln.startswith("$ make ")}
    assert {"run", "test"} <= targets
    for target in targets:
        done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_the_tables_of_the_readme_and_of_getting_started_are_those_of_the_committed_run(
    scalebench, project
):
    run = "reports/gallery/ddp-2-cores"
    shutil.copytree(ROOT / run, project / run)
    shown = blocks("README.md", "text")[0]
    assert shown == scalebench("show", run).stdout
    assert "verdict on suite ddp" in shown
    (cut,) = blocks("docs/getting-started.md", "text")
    assert_is_cut_from(cut, scalebench("show", "--verbose", run).stdout)
    assert "what the cost model says" in cut and "verdict on suite ddp" in cut


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "CONTRIBUTING.md",
        *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").glob("*.md")),
    ],
)
def test_links_lead_somewhere(document):
    text = (ROOT / document).read_text()
    for target in re.findall(r"\]\(([^)#]+)", text):
        if not target.startswith("https://"):
            assert ((ROOT / document).parent / target).exists(), target


def test_modules_and_files_that_documents_name_exist():
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    prose = "\n".join(BLOCK.sub("", path.read_text()) for path in documents)
    files = re.findall(r"`((?:scalebench|tests|benchmarks|suites)/[\w./]+)`", prose)
    assert len(files) >= 5
    for name in files:
        written_by_you = name in ("suites/buckets.py", "suites/flat.py")
        assert written_by_you or (ROOT / name).exists(), name
    modules = set(re.findall(r"(?<!-m )\bscalebench(?:\.[A-Za-z_]+){2,}", prose))
    assert modules
    for module in modules - {"scalebench.summary"}:
        if not module.startswith("scalebench.gate"):  # a table of pyproject.toml
            assert pkgutil.resolve_name(module), module
