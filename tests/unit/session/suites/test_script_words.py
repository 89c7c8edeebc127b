import os
import stat
import sys
from pathlib import Path

import pytest

from scalebench.errors import UsageError
from scalebench.session.suites.script import script_suite, understood
from scalebench.spec.script import script_from
from tests.builders.sessions import NO_FLAGS
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
    "words, line",
    ("torchrun --nproc-per-node 2 train.py --lr 1", "-- train.py --lr 1."),
    ("torchrun --standalone -m pack.train --lr 1", "-- -m pack.train --lr 1."),
    ("python -m torch.distributed.run --nproc-per-node 2 a/t.py", "-- a/t.py."),
    ("-m torch.distributed.launch t.py x.py", "-- t.py x.py."),
    ("deepspeed --num_gpus 2 train.py --deepspeed ds.json", "-- train.py --deepspeed ds.json."),
    ("mpirun -np 2 python train.py --lr 1", "-- train.py --lr 1."),
    ("uv run --with x python t.py", '--python "$(uv run --with x which python)" -- t.py.'),
    ("conda run -n e python -m p", '--python "$(conda run -n e which python)" -- -m p.'),
    ("fabric run --devices 2 t.py --lr 1", "-- t.py --lr 1."),
    ("nice -n 5 python t.py", "nice scalebench run -- t.py."),
    ("numactl -N 0 python t.py", "numactl scalebench run -- t.py."),
    ("bash train.sh 1", "scalebench run -- train.py --lr 1"),
    ("./train.sh", "scalebench run -- train.py --lr 1"),
    ("bash", "bash starts a shell"),
    ("bash -c x", "scalebench run -- train.py --lr 0.1"),
)
def test_what_starts_something_else_is_refused_with_the_line_to_write(bin_, words, line):
    Path("train.sh").write_text(
        'set -e\n# python old.py\ntorchrun $X \\\n  train.py --lr 1 "$@"\necho ok\n'
    )
    with pytest.raises(UsageError) as refused:
        script(*words.split())
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_shells_own_line_is_quoted_back():
    with pytest.raises(UsageError, match=r"bash -c starts .* run -- python t\.py --lr 1$"):
        script("bash", "-c", "cd x\npython t.py --lr 1")


@pytest.fixture(autouse=True)
def train_py(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)


def suite(*words, **flags):
    return script_suite(["train.py", *words], NO_FLAGS | flags)


@cases(
    "words, flags, complaint",
    (["{rank_batch}"], {}, "give --batch-size"),
    ([], {"batch_size": 32}, "--batch-size does not reach the script"),
    ([], {"workload": "gpt"}, "--workload is for scalebench's own workloads"),
    ([], {"compile": True}, "--compile is for"),
    ([], {"suites": ("ddp",)}, "Give a suite"),
    ([], {"python": "/nowhere/python"}, "There is no interpreter /nowhere/python"),
    ([], {"samples_per_step": "{global_batch}"}, "names a batch that nothing gives"),
    ([], {"samples_per_step": "many"}, "is not a number of samples"),
)
def test_options_that_do_not_fit(words, flags, complaint):
    with pytest.raises(UsageError, match=complaint):
        suite(*words, **flags)


def test_a_script_that_does_not_exist():
    with pytest.raises(UsageError, match=r"There is no script train2\.py"):
        script_suite(["train2.py"], NO_FLAGS)
