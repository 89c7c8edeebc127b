import os
import stat
import sys

import pytest

from scalebench.errors import UsageError
from scalebench.session import suites
from scalebench.session.suites import understood
from scalebench.spec.script import script_from
from tests.examples import cases

ACCELERATE = """
import os, subprocess
class parser:
    def parse_args(self, words):
        import types
        assert words[0] == "--mixed_precision=bf16", words
        return types.SimpleNamespace(training_script=words[1], training_script_args=words[2:],
                                     module=False)
launch_command_parser = parser
def launch_command(args):
    variables = {"ACCELERATE_MIXED_PRECISION": "bf16", "FSDP_VERSION": "2", "MASTER_PORT": "1"}
    subprocess.Popen(["python"], env={**os.environ, **variables})
"""


def executable(path, text):
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def bin_(tmp_path, monkeypatch):
    found = tmp_path / "bin"
    here = tmp_path / "here"
    for folder in (found, here):
        folder.mkdir()
    monkeypatch.setenv("PATH", str(found), prepend=os.pathsep)
    monkeypatch.chdir(here)
    return found


def script(*words, python=None):
    return script_from(understood(words, python), python)


def test_python_is_the_users_and_what_is_asked_for_wins(bin_):
    own = str(executable(bin_ / "python", "#!/bin/sh\n"))
    assert script("python", "train.py").python == own
    assert script("python", "train.py", python="/x/python").python == "/x/python"
    assert script("train.py").python == sys.executable
    found = script(
        "env", "A=1", "B=x=y", "python", "-u", "-X", "dev", "-W", "error", "-m", "p", "-u"
    )
    assert (found.python, found.program, found.module) == (own, "p", True)
    assert found.python_options == ("-u", "-X", "dev", "-W", "error")
    assert (found.environment, found.arguments) == (("A=1", "B=x=y"), ("-u",))


@cases(
    "text, python",
    ("#!/opt/env/bin/python3.11\nimport x\n", "/opt/env/bin/python3.11"),
    ("#!/usr/bin/env python3\n", "python3"),
    ("#!/bin/sh\n'''exec' \"/very/long/python\" \"$0\" \"$@\"\n' '''\n", "/very/long/python"),
)
def test_a_console_script_is_the_python_file_that_it_is(bin_, text, python):
    file = executable(bin_ / "litgpt", text)
    found = script("A=1", "litgpt", "pretrain", "--lr", "1")
    assert (found.name, found.program, found.python) == ("litgpt", str(file), python)
    assert (found.arguments, found.environment) == (("pretrain", "--lr", "1"), ("A=1",))
    assert script("litgpt", python="/x/python").python == "/x/python"


def test_accelerate_is_asked_for_its_settings(bin_, tmp_path, monkeypatch):
    commands = tmp_path / "lib" / "accelerate" / "commands"
    distributed = tmp_path / "lib" / "torch" / "distributed"
    for folder in (commands, distributed):
        folder.mkdir(parents=True)
        for package in (folder, folder.parent):
            (package / "__init__.py").write_text("")
    (distributed / "run.py").write_text("")
    (commands / "launch.py").write_text(ACCELERATE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))
    executable(bin_ / "accelerate", f"#!{sys.executable}\n")
    words = ("--mixed_precision=bf16", "train.py", "--batch", "{rank_batch}")
    module = (sys.executable, "-m", "accelerate.commands.launch")
    for launch in (("accelerate", "launch"), module):
        found = script("A=1", *launch, *words)
        assert (found.program, found.python) == ("train.py", sys.executable)
        assert found.arguments == ("--batch", "{rank_batch}")
        assert found.environment == ("A=1", "ACCELERATE_MIXED_PRECISION=bf16", "FSDP_VERSION=2")
    (commands / "launch.py").write_text("raise ValueError('no such thing')")
    with pytest.raises(
        UsageError, match=r"no such thing.*ACCELERATE_MIXED_PRECISION=bf16 train\.py"
    ):
        script("accelerate", "launch", *words)


@cases(
    "text",
    "cd x\npython t.py --lr 1",
    "cd x && python t.py --lr 1",
    "cd x; python t.py --lr 1 > log 2>&1 || exit 3",
    "python t.py --lr 1 2>&1 | tee log",
    "# don't\npython t.py --lr 1 &> t.py.log &",
)
def test_a_shells_own_line_is_quoted_back(text):
    with pytest.raises(UsageError, match=r"bash -c starts .* run -- python t\.py --lr 1$"):
        script("bash", "-c", text)


def test_what_a_shells_line_quotes_is_not_cut():
    with pytest.raises(UsageError, match=r"-- python t\.py --say 'a; b \| c' --lr 1$"):
        script("bash", "-c", "cd x; python t.py --say 'a; b | c' --lr 1 > log")


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
    monkeypatch.setattr("scalebench.session.suites.bundled_suites", lambda: bundled)
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
    assert suites.load_suite("ddp").question == "Is this mine?"
    assert suites.load_suite("own").question == "Is this mine?"
    assert suites.load_suite("other").question == "Is this bundled?"
    assert set(suites.suite_files()) == {"ddp", "other", "own"}


@cases(
    "text, told",
    (NONE + "raise ValueError('why it broke')", "ValueError: why it broke"),
    (NONE + "raise ValueError", "ValueError"),
    (NONE + "import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
    ("SUITE = (", "SyntaxError"),
    (NONE + "raise SystemExit(0)", "SystemExit"),
    (NONE + "import sys; sys.exit('why it left')", "why it left"),
    *((text, "does not define SUITE") for text in ("", "SUITE = 3", NONE, "suite = 1")),
    ("open('executed', 'w')", "scalebench run -- x.py"),  # a training script without the dashes
    (OF_CASE.format("name='ddp', strategy=Ddp(bucket_size=3)"), "bucket_size"),
    (OF_CASE.format("name='Not A Name', strategy=Ddp()"), "name"),
    (OF_CASE.format("name='ddp', strategy='ddp'"), "strategy"),
)
def test_a_file_that_is_no_suite_is_a_usage_error_that_says_what_and_where(here, text, told):
    (here / "x.py").write_text(text)
    with pytest.raises(UsageError, match=r"x\.py") as error:
        suites.load_suite("x.py")
    assert told in str(error.value)
    assert not (here / "executed").exists()


def test_two_suites_of_one_name_are_refused(here):
    write(here, "ddp", "another", file="another")
    with pytest.raises(UsageError, match="the same name: ddp"):
        suites.load_suites(["ddp", "another.py"])


def test_the_suites_that_come_with_the_package_can_be_loaded(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = suites.suite_files()
    assert "ddp" in found
    for name in found:
        suite = suites.load_suite(name)
        assert suite.name == name
        assert suite.collectives or any(not case.optional for case in suite.cases)
        assert len({case.name for case in suite.cases}) == len(suite.cases)
    assert suites.CORE_SUITES[0] == "ddp"


@cases(
    "names, cases, workload",
    (("ddp", "fsdp", "tensor"), ["plain", "ddp", "fsdp", "tensor"], "gpt"),
    (("hsdp", "ddp"), ["plain", "hsdp", "ddp"], "gpt"),  # optional in its own suite
    (("ddp", "pipeline"), ["plain", "ddp", "gpipe", "1f1b", "interleaved-1f1b"], "gpt-deep"),
    (("ring-2-groups",), ["plain", "ring-2-groups"], "gpt-long"),
)
def test_cases_and_suites_become_one_suite(names, cases, workload):
    suite = suites.strategies_suite(names, None)
    assert [case.name for case in suite.cases] == cases
    assert suite.workload == workload
    # One batch for all: cases of different batches are not ranked.
    assert {case.batch_size for case in suite.cases} == {None}
    assert not any(case.optional for case in suite.cases)


def test_the_user_may_name_the_workload_of_unlike_strategies():
    assert len(suites.strategies_suite(("pipeline", "context"), "gpt").cases) == 6
