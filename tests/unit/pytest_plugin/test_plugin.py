"""The pytest door, opened in sessions of its own; what is measured was measured before."""

import json
import math
import os
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scalebench.pytest_plugin import fixture
from scalebench.pytest_plugin.claims import Inconclusive, Quantity, launches_to_decide
from scalebench.records.run import skipped_result
from scalebench.stats import Estimate, estimate_over_launches
from tests.builders.runs import make_cell, make_failed, make_result, make_stored_run
from tests.examples import cases

pytest_plugins = ("pytester",)

ROOT = Path(__file__).parents[3]
assert fixture  # imported here, so that no session in this process imports it again
GALLERY = ROOT / "reports" / "gallery" / "ddp-2-cores"
INSTALLED = bool(entry_points(group="pytest11", name="scalebench"))
DOOR = () if INSTALLED else ("-p", "scalebench.pytest_plugin")

SUITE = """
from scalebench import Case, Ddp, Plain, Suite
static = Case(name="ddp-static", strategy=Ddp(static_graph=True), optional=True)
usual = Case(name="plain", strategy=Plain()), Case(name="ddp", strategy=Ddp())
SUITE = Suite(name="ddp", question="How well does it scale?", cases=(*usual, static))
"""


@pytest.fixture
def session(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in [name for name in os.environ if name.startswith("PYTEST_XDIST")]:
        monkeypatch.delenv(name)  # these tests may run side by side; what they start is alone
    (pytester.path / "suites").mkdir()
    (pytester.path / "suites" / "ddp.py").write_text(SUITE)
    pytester.makeini("[pytest]\n")

    def run(*arguments, apart=False, says=(), **outcomes):
        start = pytester.runpytest_subprocess if apart else pytester.runpytest_inprocess
        result = start(*DOOR, "-p", "no:cacheprovider", *map(str, arguments))
        if outcomes:
            result.assert_outcomes(**outcomes)
            result.stdout.fnmatch_lines(says)
        else:
            assert result.ret == pytest.ExitCode.USAGE_ERROR
            result.stderr.fnmatch_lines(says)
        return result

    return run


@pytest.fixture
def stored(tmp_path):
    def write(results=None):
        if not (tmp_path / "run").exists():
            make_stored_run(tmp_path / "run", results)
        return f"--scaling-run={tmp_path / 'run'}"

    return write


def test_what_went_wrong_fails_with_the_reason_of_the_row(session, stored):
    wrong = make_failed(make_cell("ddp", 2), "rank 1: it broke | \x1b[31m")
    out = make_failed(make_cell("ddp", 4), "rank 3: out of memory", status="oom")
    absent = make_cell("ddp", 8, skip_reason="8 ranks asked for, 2 GPUs here")
    skipped = skipped_result(absent, absent.skip_reason, "2024-05-01T12:00:00+00:00")
    fine = [make_result(make_cell("plain", 1)), make_result(make_cell("ddp", 1))]
    run = stored([*fine, wrong, out, skipped])
    says = [
        "ddp, N=2: failed: rank 1: it broke | *(run: *run)",
        "ddp, N=4: oom: rank 3: out of memory *",
        "*has no row of ddp at N=16.",
        "SKIPPED*8 ranks asked for, 2 GPUs here*",
    ]
    words = ("suites", "--gpus", "1,2,4,8,16", run, "-rs")
    result = session(*words, says=says, passed=2, failed=3, skipped=1)
    assert not [line for line in result.outlines if line.startswith(">")], "no traceback"


NOTHING_HEAVY = """
import sys

def test_nothing_heavy_was_imported():
    heavy = {"torch", "numpy", "scipy", "pandas", "pydantic", "click", "rich", "plotly"}
    assert not heavy & set(sys.modules)
    ours = {name for name in sys.modules if name.startswith("scalebench")}
    assert ours <= {"scalebench", "scalebench.pytest_plugin"}
"""


def test_without_sizes_nothing_is_collected_and_nothing_is_loaded(session, pytester):
    pytester.makepyfile(test_other=NOTHING_HEAVY)
    session("-p", "no:hypothesispytest", apart=True, passed=1)


def test_what_cannot_be_is_one_line(session, pytester):
    (pytester.path / "suites" / "broken.py").write_text("SUITE = 1 / 0\n")
    says = ["Suite *broken.py raised ZeroDivisionError: division by zero. *"]
    session("suites/broken.py", "--gpus", "1", says=says, errors=1)
    session("suites", "--gpus", "two", says=["*--gpus: 'two' is not a list of rank counts.*"])
    pytester.makepyfile(test_mine="def test_it(scaling):\n    scaling('ddp/ddp', stepz=4)\n")
    says = ["*There is no setting of a measurement 'stepz'. *'steps'*"]
    session("test_mine.py", says=says, failed=1)


OPTION = "def pytest_addoption(parser):\n    parser.addoption('--gpus', type=int, default=0)\n"
OWN = "def test_own(request):\n    assert request.config.getoption('--gpus') == 3\n"


def test_a_project_with_an_option_of_that_name_keeps_it(session, stored, pytester):
    pytester.makeconftest(OPTION)
    pytester.makepyfile(test_own=OWN)
    session("test_own.py", "--gpus", "3", passed=1)
    session("suites", "--scaling-gpus", "1,2", stored(), passed=3)


@pytest.mark.slow
def test_nothing_is_measured_side_by_side(session, pytester, stored):
    says = ["*pytest-xdist runs other tests at the same time*"]
    session("suites", "--gpus", "1", "-n", "2", says=says)
    session("suites", "--gpus", "1", "-n", "0", stored(), passed=2)
    pytester.makepyfile("def test_it(scaling):\n    pass\n\ndef test_other():\n    pass\n")
    session("-n", "1", apart=True, says=says, passed=1, errors=1)


def test_claims_say_what_became_of_them_and_where_the_time_went(session, pytester):
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture
        def ddp(scaling):
            return scaling("ddp/ddp")

        def test_certain(ddp):
            assert 0.5 < ddp.efficiency(2) < 0.99
            assert ddp.row(2).wire_bytes == 1_751_040

        def test_refuted(ddp):
            assert ddp.efficiency(2) > 0.99

        def test_inconclusive(ddp):
            assert ddp.efficiency(2) > 0.84

        def test_equal(ddp):
            assert ddp.efficiency(2) == 0.84

        def test_exact(ddp):
            assert ddp.quantity("wire_bytes", 2) <= ddp.row(2).wire_bytes
            assert ddp.quantity("all_reduce_count", 2) < 20

        def test_null(ddp):
            assert ddp.quantity("mfu", 2) > 0

        def test_not_measured(ddp):
            assert ddp.efficiency(4) > 0

        def test_misspelt(ddp):
            assert ddp.quantity("eficiency", 2) > 0

        def test_other_case(scaling):
            assert scaling("ddp/nothing").efficiency(2) > 0

        @pytest.mark.benchmark(group="mine")
        def test_recorded(ddp):
            ddp.record(2)
        """
    )
    where = "E *Of the 17.1 % lost, idle takes 5.7*"
    says = [
        "E *assert efficiency > 0.99 is refuted",
        "E *efficiency of ddp, N=2: 0.829 (0.805 to 0.853, 95 %, 5 launches)",
        where,
        "E *efficiency > 0.84 is inconclusive",
        "E *the interval contains 0.84; *",
        where,
        "E *compare it by > or <, or take its .value",
        "mfu of ddp, N=2 is null: the peak FLOP/s of 'cpu' are not known",
        "N=4 was not measured; measured: N=1, 2.*",
        "E *Did you mean 'efficiency'?*",
        "E *There is no case of suite ddp: 'nothing'*",
    ]
    words = (f"--scaling-run={GALLERY}", "--benchmark-json=out.json")
    session(*words, says=says, passed=3, failed=7)
    (kept,) = json.loads((pytester.path / "out.json").read_text())["benchmarks"]
    assert (kept["name"], kept["group"]) == ("test_recorded", "mine")
    assert kept["stats"]["rounds"] == 250
    row = kept["extra_info"]["row"]
    assert (row["case"], row["world_size"], row["wire_bytes"]) == ("ddp", 2, 1_751_040)


OTHER = """
import scalebench as sb

def test_same(scaling):
    assert scaling(sb.Ddp()).efficiency(2) > 0.7

def test_other(scaling):
    scaling(sb.Ddp(bucket_mb=1))
"""


def test_a_stored_row_of_other_settings_is_no_answer(session, pytester, stored):
    pytester.makepyfile(OTHER)
    says = ["*case ddp has bucket_mb=25.0, but 1.0 was requested. *"]
    session(stored(), says=says, passed=1, failed=1)


numbers = st.floats(-1e6, 1e6)


def quantity(low=0.82, value=0.86, high=0.89, n=3, explanation=()):
    found = Estimate(value=value, low=low, high=high, n=n)
    return Quantity("efficiency", "ddp, N=2", found, explanation)


@cases(
    "bound, more, at_least, less, at_most",
    (0.80, "certain", "certain", "refuted", "refuted"),
    (0.82, "inconclusive", "certain", "refuted", "inconclusive"),
    (0.86, "inconclusive", "inconclusive", "inconclusive", "inconclusive"),
    (0.89, "refuted", "inconclusive", "inconclusive", "certain"),
    (0.90, "refuted", "refuted", "certain", "certain"),
)
def test_the_table_of_outcomes(bound, more, at_least, less, at_most):
    q = quantity()
    found = [(q > bound), (q >= bound), (q < bound), (q <= bound)]
    assert [c.outcome for c in found] == [more, at_least, less, at_most]


def test_what_is_inconclusive_has_no_truth_value():
    assert quantity() > 0.8
    assert not quantity() > 0.9
    assert 0.8 < quantity() < 0.9
    for claim in (lambda: quantity() > 0.86, lambda: not quantity() > 0.86):
        with pytest.raises(Inconclusive, match=r"0\.86 is inconclusive"):
            assert claim()


def test_one_launch_decides_nothing():
    alone = quantity(low=None, high=None, n=1)
    assert (alone > 0.1).outcome == (alone < 0.1).outcome == "inconclusive"
    with pytest.raises(Inconclusive, match="repeats of at least 3"):
        bool(alone > 0.1)


@cases("bound", math.nan, math.inf, "0.9", None, True)
def test_a_bound_is_a_finite_number(bound):
    with pytest.raises(TypeError, match="Compare it with a finite number"):
        assert quantity() > bound


def test_two_quantities_do_not_compare():
    with pytest.raises(TypeError, match=r"two measured numbers compare by \.value"):
        assert quantity() > quantity()


@given(st.lists(st.floats(0.5, 1.5), min_size=2, max_size=6, unique=True), st.floats(0.05, 0.3))
def test_so_many_launches_decide_if_the_spread_stays(values, distance):
    found = estimate_over_launches(values)
    assume(found.half_width > 0)
    needed = launches_to_decide(found, found.value + distance)
    if found.half_width < distance and needed is not None:
        assert needed == found.n + 1
    if needed is not None:
        assert needed > found.n
    further = launches_to_decide(found, found.value + 2 * distance)
    assert needed is None or (further is not None and further <= needed)
