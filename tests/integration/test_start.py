"""Commands that only look start without the libraries that cost seconds to import."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scalebench.session.machine import survey
from tests.builders.runs import make_stored_run

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
        ended = subprocess.run(
            [sys.executable, "-c", SCRIPT, forbidden, *map(os.fspath, arguments)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=120,
        )
        assert ended.returncode == 0, ended.stderr
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


def test_show_prints_a_stored_run_without_torch(start, tmp_path):
    make_stored_run(tmp_path / "run")
    rows = json.loads(start("torch,pandas,plotly", "show", "--json", tmp_path / "run"))["rows"]
    assert [row["world_size"] for row in rows] == [1, 1, 2]


def test_report_renders_a_stored_run_without_torch(start, tmp_path):
    paths = make_stored_run(tmp_path / "run")
    assert start("torch", "report", paths.root).strip() == os.fspath(paths.report_html)
    assert paths.report_html.stat().st_size > 10_000


@pytest.mark.parametrize("name", ["junit", "openmetrics", "bencher", "pytest-benchmark"])
def test_export_needs_neither_torch_nor_dataframes(start, tmp_path, name):
    make_stored_run(tmp_path / "run")
    assert "ddp" in start(
        "torch,pandas,plotly,pyarrow", "export", tmp_path / "run", "--format", name
    )


def test_the_public_names_load_nothing_heavy():
    script = "import sys; from scalebench import Ddp, Shard, Suite, Workload, run; " + (
        "assert not {'torch', 'pandas', 'plotly'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_what_ranks_are_forked_from_loads_no_solvers_and_no_tables():
    """Every run waits for it; scipy's solvers fit what was measured, afterwards."""
    script = "import sys, scalebench.worker.zygote; " + (
        "assert not {'scipy.optimize', 'pandas', 'plotly'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_trace_needs_neither_torch_nor_the_page(start):
    golden = Path(__file__).parents[1] / "golden" / "traces"
    file = golden / "nccl-sendrecv_128ranks_rank0.json.gz"
    assert "all_to_all" in start("torch,pandas,plotly", "trace", file)
    assert "all_to_all" in start("torch,pandas,plotly,scipy,rich", "trace", file, "--json")


def test_runs_are_compared_without_torch(start, tmp_path):
    paths = make_stored_run(tmp_path / "run")
    paths.summary_json.write_text(start("torch", "show", "--json", paths.root))
    shown = start("torch,pandas,plotly", "compare", paths.root, paths.root)
    assert "count for the verdict" in shown
