import pytest

from scalebench.errors import UsageError
from scalebench.session.suites import files
from tests.examples import cases

SUITE = """
from scalebench import Case, Ddp, Plain, Suite
SUITE = Suite(name={name!r}, question="Is this {question}?", cases=(
    Case(name="plain", strategy=Plain()), Case(name="ddp", strategy=Ddp())))
"""

NONE = "SUITE = None; "
OF_CASE = "from scalebench import *; SUITE = Suite(name='x', question='?', cases=(Case({}),))"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder as the current one, a bundled suite ``ddp`` and a bundled ``other``."""
    bundled = tmp_path / "bundled"
    bundled.mkdir()
    write(bundled, "ddp", "bundled")
    write(bundled, "other", "bundled")
    (bundled / "__init__.py").write_text("")
    monkeypatch.setattr("scalebench.session.suites.files.bundled_suites", lambda: bundled)
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def write(folder, name, question, file=None):
    folder.mkdir(exist_ok=True)
    path = folder / f"{file or name}.py"
    path.write_text(SUITE.format(name=name, question=question))
    return path


def test_local_suites_hide_bundled_ones_of_the_same_name(here):
    write(here / "suites", "ddp", "mine")
    write(here / "suites", "own", "mine")
    assert files.load_suite("ddp").question == "Is this mine?"
    assert files.load_suite("own").question == "Is this mine?"
    assert files.load_suite("other").question == "Is this bundled?"
    assert set(files.suite_files()) == {"ddp", "other", "own"}


@cases(
    "name, told",
    ("dpp", r"Did you mean 'ddp'.*Valid: ddp, other"),
    *((name, "There is no suite") for name in ("nowhere.py", "suites/ddp.py", ".py")),
)
def test_an_unknown_name_is_answered_with_the_nearest_and_the_valid_ones(here, name, told):
    with pytest.raises(UsageError, match=told):
        files.load_suite(name)


def test_a_training_script_without_the_dashes_is_not_executed(here):
    (here / "train.py").write_text("open('executed', 'w')")
    with pytest.raises(UsageError, match=r"scalebench run -- train\.py"):
        files.load_suite("train.py")
    assert not (here / "executed").exists()


@cases(
    "text, told",
    (NONE + "raise ValueError('why it broke')", "ValueError: why it broke"),
    (NONE + "raise ValueError", "ValueError"),
    (NONE + "import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
    ("SUITE = (", "SyntaxError"),
    (NONE + "raise SystemExit(0)", "SystemExit"),
    (NONE + "import sys; sys.exit('why it left')", "why it left"),
    *((text, "does not define SUITE") for text in ("", "SUITE = 3", NONE, "suite = 1")),
    (OF_CASE.format("name='ddp', strategy=Ddp(bucket_size=3)"), "bucket_size"),
    (OF_CASE.format("name='Not A Name', strategy=Ddp()"), "name"),
    (OF_CASE.format("name='ddp', strategy='ddp'"), "strategy"),
)
def test_a_file_that_is_no_suite_is_a_usage_error_that_says_what_and_where(here, text, told):
    (here / "x.py").write_text(text)
    with pytest.raises(UsageError, match=r"x\.py") as error:
        files.load_suite("x.py")
    assert told in str(error.value).replace("x.py", "")


def test_two_suites_of_one_name_are_refused(here):
    write(here, "ddp", "another", file="another")
    with pytest.raises(UsageError, match="the same name: ddp"):
        files.load_suites(["ddp", "another.py"])


def test_the_suites_that_come_with_the_package_can_be_loaded(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = files.suite_files()
    assert "ddp" in found
    for name in found:
        suite = files.load_suite(name)
        assert suite.name == name
        assert suite.collectives or any(not case.optional for case in suite.cases)
        assert len({case.name for case in suite.cases}) == len(suite.cases)
    assert files.CORE_SUITES[0] == "ddp"


@cases(
    "names, cases, workload",
    (("ddp", "fsdp", "tensor"), ["plain", "ddp", "fsdp", "tensor"], "gpt"),
    (("hsdp", "ddp"), ["plain", "hsdp", "ddp"], "gpt"),  # optional in its own suite
    (("ddp", "pipeline"), ["plain", "ddp", "gpipe", "1f1b", "interleaved-1f1b"], "gpt-deep"),
    (("ring-2-groups",), ["plain", "ring-2-groups"], "gpt-long"),
)
def test_cases_and_suites_become_one_suite(names, cases, workload):
    suite = files.strategies_suite(names, None)
    assert [case.name for case in suite.cases] == cases
    assert suite.workload == workload
    # One batch for all: cases of different batches are not ranked.
    assert {case.batch_size for case in suite.cases} == {None}
    assert not any(case.optional for case in suite.cases)


@cases(
    "names, told",
    (("ddp", "fdsp"), "no strategy 'fdsp'. Did you mean 'fsdp'?"),
    (("plain",), "no strategy 'plain'"),
    (("asynchronous",), "no strategy 'asynchronous'"),  # a race
    (("pipeline", "context"), "pipeline for gpt-deep, context for gpt-long"),
)
def test_what_cannot_be_compared_is_said(names, told):
    with pytest.raises(UsageError) as error:
        files.strategies_suite(names, None)
    assert told in str(error.value) and len(str(error.value)) < 300


def test_the_user_may_name_the_workload_of_unlike_strategies():
    assert len(files.strategies_suite(("pipeline", "context"), "gpt").cases) == 6
