"""What people type first: one line with the command that they mean, or what they asked for."""

import pytest

from scalebench.cli import main
from scalebench.errors import UsageError
from scalebench.session.plan.make import about_scripts
from scalebench.session.suites.script import script_suite
from tests.builders.runs import make_cell
from tests.builders.sessions import NO_FLAGS
from tests.examples import cases

TRAIN = "import argparse\nparser.add_argument('--batch-size')\n"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "mine.py").write_text("SUITE = None")
    (tmp_path / "my_gpt.py").write_text("def two(a, b): ...\ndef workload(shard): ...\n")
    (tmp_path / "models").mkdir()
    (tmp_path / "models/small.py").write_text("raise Error\ndef first(shard): ...\n")


def told(capfd, *words):
    with pytest.raises(SystemExit) as left:
        main(words)
    captured = capfd.readouterr()
    return left.value.code, captured.out, captured.err


@cases(
    "typed, meant",
    ("run train.py", "run -- train.py"),
    ("run train.py --gpus 1,2 --batch-size 8", "run --gpus 1,2 -- train.py --batch-size 8"),
    ("run python train.py --lr 0.1", "run -- python train.py --lr 0.1"),
    ("run -m my.train --lr 0.1", "run -- -m my.train --lr 0.1"),
    ("run torchrun --nproc_per_node 2 train.py -x", "run -- train.py -x"),
    ("train.py --lr 0.1", "run -- train.py --lr 0.1"),
    ("-- train.py", "run -- train.py"),
    ("ddp --gpus 2", "run ddp --gpus 2"),
    ("run ddp --nproc_per_node=2", "run ddp --gpus=2"),
    ("run ddp --gpus 1,2 --nproc 4 --quick", "run ddp --gpus 1,2 --quick"),
    ("run ddp -n 2", "run ddp --gpus 2"),
    ("run --nproc 2 -- train.py --nproc 3", "run --gpus 2 -- train.py --nproc 3"),
    ("run ddp --batch_size 8", "run ddp --batch-size 8"),
    ("run --suite=ddp --model mlp", "run ddp --workload mlp"),
)
def test_the_command_that_is_meant(capfd, typed, meant):
    code, out, err = told(capfd, *typed.split())
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert f": scalebench {meant}." in err


@cases(
    "given, meant",
    ("my_gpt.py", "my_gpt:workload"),
    ("./my_gpt.py:two", None),
    ("my_gpt:", "my_gpt:workload"),
    ("my_gpt.workload", "my_gpt:workload"),
    ("models/small.py:first", "models.small:first"),
    ("my_gtp", None),
)
def test_a_workload_without_its_function(capfd, given, meant):
    code, _, err = told(capfd, "run", "ddp", "--dry-run", "--workload", given)
    assert (code, err.count("\n")) == (2, 1), err
    assert (f"Write: --workload {meant}." if meant else given) in err
    assert meant or "Write:" not in err


@cases(
    "argument, said",
    ("{worldsize}", "Write {world_size}"),
    ("x{globl_batch}", "Write {global_batch}"),
    ("{epoch}.pt", "train.py gets {epoch} as it stands"),
    ("{run_dir}", None),
    ('{"a": 1}', None),
)
def test_a_name_in_braces(argument, said):
    flags = {**NO_FLAGS, "batch_size": None}
    try:
        (case,) = (suite := script_suite(["train.py", argument], flags)).cases
    except UsageError as error:
        assert said and said in str(error) and "Valid: {world_size}, " in str(error)
        return
    cell = make_cell(strategy=case.strategy, workload=suite.script)
    assert [said in told for told in about_scripts([cell]) if "stands" in told] == [True] * bool(
        said
    )


@cases("words", (), ("baseline",))
def test_a_group_alone_prints_its_help(capfd, words):
    code, out, err = told(capfd, *words)
    assert (code, err) == (0, "") and "Commands:\n" in out and out.count("\n") > 8


def test_help_begins_with_the_users_own_script(capfd):
    _, out, _ = told(capfd, "--help")
    first = next(line for line in out.splitlines() if line.startswith("  scalebench "))
    assert first.strip() == "scalebench run --gpus 1,2,4 -- train.py --lr 0.1"
