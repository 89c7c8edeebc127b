import html
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from scalebench.cli import cli
from scalebench.report.search import notes
from scalebench.search.result import SearchResult
from scalebench.session.suites import load_suite
from tests.examples import cases

ELSEWHERE = ["--workload", "gpt-7b", "--gpu-type", "h100", "--mfu", "0.45", "--margin", "0.1"]


def searched(*arguments):
    return CliRunner().invoke(cli, ["search", *arguments], standalone_mode=False)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("search")
    files = ["--suite", str(folder / "best.py"), "--html", str(folder / "page.html")]
    done = searched("--gpus", "8", *ELSEWHERE, *files, "--json")
    assert done.exception is None, done.exception
    return SearchResult.model_validate(json.loads(done.stdout)), folder


def test_the_best_come_first_and_fit(found):
    result, _ = found
    steps = [one.step_s for one in result.best]
    assert steps == sorted(steps) and len(steps) == 10
    assert result.num_evaluated <= result.num_fitting < result.num_candidates
    for one in result.best:
        assert one.memory_bytes * 1.1 <= 80e9
        assert one.low_s is not None and one.low_s < one.step_s < (one.high_s or 0)
        assert sum(one.parts_s.values()) == pytest.approx(one.step_s)
        assert one.mfu is not None and one.mfu <= 0.45
        assert (one.strategy is None) == (one.cannot_run is not None)
    assert 0 < (result.probability or 0) < 1 and "faster than" in result.why
    assert any("assumed, not measured" in said for said in result.assumptions)


@cases("asked, margin", ([], 0.1), (["--margin", "0"], 0.0))
def test_memory_is_left_free_unless_none_shall_be(asked, margin):
    done = searched("--gpus", "8", *ELSEWHERE[:-2], "--memory-limit", "40GB", *asked, "--json")
    assert done.exception is None, done.exception
    result = SearchResult.model_validate(json.loads(done.stdout))
    assert result.margin == margin
    assert max(one.memory_bytes for one in result.best) * (1 + margin) <= 40e9


def test_a_batch_smaller_than_the_ranks_is_said_where_no_one_asked_for_it():
    asked = ["--gpus", "32", *ELSEWHERE]
    told = " ".join(searched(*asked).stdout.split())
    assert "16 samples are fewer than ranks: give --batch-size" in told
    assert "give --batch-size" not in " ".join(
        searched(*asked, "--batch-size", "16").stdout.split()
    )


def test_the_page_says_what_the_terminal_says_and_shows_lines_as_lines(found):
    result, folder = found
    page = html.unescape((folder / "page.html").read_text())
    assert all(said in page for said in notes(result))
    assert '<line x1="-14"' in page.partition("memory limit less margin</button>")[0]


def test_the_suite_is_one_that_run_takes(found):
    result, folder = found
    suite = load_suite(str(folder / "best.py"))
    names = [case.name for case in suite.cases]
    assert names == ["plain", *(one.case for one in result.trained)]
    assert len(result.trained) == 10 and all(one.strategy for one in result.trained)
    assert suite.workload == "gpt-7b" and suite.batch_size == result.global_batch


@pytest.mark.slow
def test_without_a_measurement_torch_stays_away():
    program = (
        "import sys\nfrom scalebench.cli import cli\n"
        f"cli(['search', '--gpus', '8', *{ELSEWHERE!r}], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
