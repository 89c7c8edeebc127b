"""``scalebench trace`` as a user calls it."""

import json
from pathlib import Path

import pytest

from tests.conftest import Scalebench

pytestmark = pytest.mark.untimed

GOLDEN = Path(__file__).parents[1] / "golden" / "traces"
TRACES = sorted(str(path) for path in GOLDEN.glob("nccl*.json.gz"))


def test_table_and_page(scalebench: Scalebench, project: Path) -> None:
    done = scalebench("trace", *TRACES[1:], "--html", "page.html")
    assert done.returncode == 0, done.stderr
    assert "14.9 %" in done.stdout
    assert "19.9 %" in done.stdout
    assert "all_to_all" in done.stdout
    assert "page.html" in done.stderr
    assert (project / "page.html").stat().st_size > 1e6


def test_json_alone_on_standard_output(scalebench: Scalebench) -> None:
    done = scalebench("trace", TRACES[0], "--json", "--window", "steps")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["window"] == "steps"
    assert answer["files"][0]["num_steps"] == 2
    assert answer["files"][0]["window_s"] < 0.45


def test_one_bad_file_among_several(scalebench: Scalebench, project: Path) -> None:
    (project / "empty.json").touch()
    done = scalebench("trace", TRACES[0], "empty.json", "--json")
    assert done.returncode == 4
    assert done.stderr.strip() == (
        "scalebench: empty.json is empty. A trace is what torch.profiler's export_chrome_trace "
        "writes, plain or with gzip."
    )
    assert len(json.loads(done.stdout)["files"]) == 1


def test_nothing_but_bad_files(scalebench: Scalebench, project: Path) -> None:
    (project / "notes.json").write_text('{"model": "gpt"}')
    done = scalebench("trace", "absent.json", "notes.json")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "absent.json cannot be read" in done.stderr
    assert "notes.json is JSON without traceEvents" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_file(scalebench: Scalebench) -> None:
    done = scalebench("trace")
    assert done.returncode == 2
    assert "FILE" in done.stderr


def test_a_page_that_cannot_be_written(scalebench: Scalebench) -> None:
    done = scalebench("trace", TRACES[0], "--html", "no/such/folder/page.html")
    assert done.returncode == 5
    assert "page cannot be written" in done.stderr


def test_a_pattern_that_is_none(scalebench: Scalebench) -> None:
    done = scalebench("trace", TRACES[0], "--communication", "own(")
    assert done.returncode == 2
    assert "--communication own( is no regular expression: missing )" in done.stderr
