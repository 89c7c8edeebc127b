"""Commands that look before anything is measured: what they say, and what they need not import."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from scalebench.session.machine import survey
from tests.builders.runs import make_stored_run
from tests.conftest import ran
from tests.integration.conftest import complaint

GPUS = (Path(__file__).parents[3] / "docs" / "gpus.md").read_text()


def test_a_dry_run_shows_the_plan_and_trains_nothing(scalebench, project):
    done = scalebench("run", "ddp", "--gpus", "2,4", "--dry-run", "--workload", "gpt-124m", code=0)
    assert "N = 1 was added" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("ddp ")]
    assert [(row[1], row[2]) for row in rows][:4] == [
        *(("plain", "1"), ("ddp", "1"), ("ddp", "2"), ("ddp", "4"))
    ]
    predicted_gb = {row[-2] for row in rows}
    assert predicted_gb == {"1.99"}  # 16 bytes for each of 124,475,904 parameters
    assert "nothing was trained" in done.stdout
    assert not (project / "reports").exists()


def test_a_dry_run_says_where_the_ranks_will_be(scalebench, project, monkeypatch):
    """Suites are pinned and scripts are not, unless asked; threads are the user's for a script."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    (project / "train.py").touch()
    firsts = []
    for what in (
        ["ddp"],
        ["ddp", "--unpinned"],
        ["--", "train.py"],
        ["--pinned", "--", "train.py"],
    ):
        done = scalebench("run", "--gpus", "1,2", "--dry-run", *what, code=0)
        firsts.append(done.stdout.splitlines()[0].partition("), ")[2])
    of_suite = firsts[0]
    assert of_suite.endswith("per rank") and not of_suite.startswith("3 ")
    assert firsts[1:] == [
        f"{of_suite}, unpinned",
        "3 threads per rank, unpinned",
        "3 threads per rank",
    ]


def test_the_list_is_remembered_and_says_what_cannot_run(scalebench, project, tmp_path):
    first = scalebench("list", "--json", code=0)
    there = json.loads(first.stdout)
    assert {"ddp", "pipeline"} <= {suite["name"] for suite in there["suites"]}
    can_run = {s["name"] for s in there["strategies"] if not s["cannot_run"]}
    assert {"plain", "ddp", "pipeline"} <= can_run
    assert any(launcher["cannot_run"] for launcher in there["launchers"])
    (cached,) = (tmp_path / "cache" / "scalebench").glob("survey-*.json")
    gpu = {"index": 0, "name": "GPU of the cache", "uuid": "0", "memory_bytes": 1 << 34}
    spoilt = {"strategies": ["from-the-cache"], "devices": [gpu]}
    cached.write_text(json.dumps(json.loads(cached.read_text()) | spoilt))
    again = scalebench("list")
    assert "from-the-cache" in again.stdout
    planned = scalebench("run", "ddp", "--gpus", "1", "--dry-run")
    assert "GPU ranks" in planned.stdout, planned.stderr


def test_the_doctor_reads_nccls_log(scalebench, project, monkeypatch):
    """As docs/gpus.md has it; what cannot be read gets one line."""
    monkeypatch.setenv("COLUMNS", "100")
    _, log, _, shown, _ = re.split(r"```text\n|```\n", GPUS.partition("With this log:")[2])[:5]
    (project / "nccl.log").write_text(log)
    done = scalebench("doctor", "--nccl-log", "nccl.log")
    assert (done.returncode, done.stdout.strip()) == (0, shown.strip()), done.stderr
    told = json.loads(scalebench("doctor", "--nccl-log", "nccl.log", "--json").stdout)
    assert [finding["rule"] for finding in told["findings"]] == ["no gdr"]
    (project / "other.log").write_text("step 1\n")
    refused = complaint(scalebench("doctor", "--nccl-log", "other.log"))
    assert "other.log: no line of NCCL's log" in refused
    assert "needs two GPUs" in complaint(scalebench("doctor", "--links"), 5)


def test_the_doctor_measures_this_machine(scalebench):
    done = scalebench("doctor", "--json", code=0)
    told = json.loads(done.stdout)
    assert told["facts"]["rates"][0]["matrix_flop_per_s"] > 1e9
    assert told["facts"]["rates"][0]["copy_byte_per_s"] > 1e8
    assert "lo" in told["conditions"]["links"]
    assert any("gloo" in finding["text"] for finding in told["findings"])
    shown = scalebench("doctor")
    assert all(word in shown.stdout for word in ("processor", "links", "clock", "/dev/shm"))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(scalebench, shell, monkeypatch):
    monkeypatch.setitem(os.environ, "_SCALEBENCH_COMPLETE", f"{shell}_source")
    done = scalebench(code=0)
    assert "_SCALEBENCH_COMPLETE" in done.stdout


SCRIPT = """
import sys
from scalebench.cli import main
try:
    main(sys.argv[2:])
except SystemExit as end:
    assert not end.code, end.code
loaded = [name for name in sys.argv[1].split(",") if name in sys.modules]
assert not loaded, f"imported: {loaded}"
"""

SURVEY = {
    "torch": "2.13.0",
    "python": "3.11.0",
    "cuda": None,
    "backends": ["gloo"],
    "strategies": ["ddp", "plain"],
    "devices": [],
}


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Run a command in a fresh process; it fails if one of ``forbidden`` was imported."""
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path / "cache"))

    def run(forbidden, *arguments):
        ended = ran(
            [sys.executable, "-c", SCRIPT, forbidden, *map(os.fspath, arguments)],
            cwd=tmp_path,
            code=0,
        )
        return ended.stdout

    return run


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(start, arguments):
    assert "scalebench" in start("torch,pandas,plotly,numpy,scipy,pydantic", *arguments).lower()


def test_list_asks_the_cache_and_not_torch(start, tmp_path):
    cache = tmp_path / "cache" / "scalebench"
    cache.mkdir(parents=True)
    (cache / f"survey-{survey.survey_key()}.json").write_text(json.dumps(SURVEY))
    make_stored_run(tmp_path / "reports" / "earlier")
    listed = json.loads(start("torch,pandas,plotly", "list", "--json"))
    assert "ddp" in {entry["name"] for entry in listed["suites"]}
    assert [entry["name"] for entry in listed["runs"]] == ["earlier"]


def test_what_shows_compares_and_exports_a_stored_run_needs_no_torch(start, tmp_path):
    paths = make_stored_run(tmp_path / "run")
    shown = start("torch,pandas,plotly", "show", "--json", paths.root)
    assert [row["world_size"] for row in json.loads(shown)["rows"]] == [1, 1, 2]
    paths.summary_json.write_text(shown)
    compared = start("torch,pandas,plotly", "compare", paths.root, paths.root)
    assert "count for the verdict" in " ".join(compared.split())
    assert start("torch", "report", paths.root).strip() == os.fspath(paths.report_html)
    assert paths.report_html.stat().st_size > 10_000
    for name in ("junit", "openmetrics", "bencher", "pytest-benchmark"):
        export = ("export", paths.root, "--format", name)
        assert "ddp" in start("torch,pandas,plotly,pyarrow", *export)


@pytest.mark.parametrize(
    ("imports", "heavy"),
    [
        ("from scalebench import Ddp, Shard, Suite, Workload, run", "torch pandas plotly"),
        # Every run waits for what ranks are forked from; solvers fit what was measured, later.
        ("import scalebench.worker.process.zygote", "scipy.optimize pandas plotly"),
    ],
)
def test_an_import_loads_nothing_heavy(imports, heavy):
    script = f"{imports}; import sys; assert not set({heavy.split()}) & set(sys.modules)"
    ran([sys.executable, "-c", script], code=0)


def test_trace_needs_neither_torch_nor_the_page(start):
    golden = Path(__file__).parents[2] / "golden" / "traces"
    file = golden / "nccl-sendrecv_128ranks_rank0.json.gz"
    assert "all_to_all" in start("torch,pandas,plotly", "trace", file)
    assert "all_to_all" in start("torch,pandas,plotly,scipy,rich", "trace", file, "--json")
