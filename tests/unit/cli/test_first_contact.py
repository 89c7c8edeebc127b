import pytest

from scalebench.errors import UsageError
from scalebench.session.plan.make import about_scripts
from scalebench.session.suites.script import script_suite
from tests.builders.runs import make_cell
from tests.builders.sessions import NO_FLAGS
from tests.examples import cases


@pytest.fixture(autouse=True)
def here(project):
    (project / "train.py").write_text("import argparse\nparser.add_argument('--batch-size')\n")
    (project / "mine.py").write_text("SUITE = None")
    (project / "my_gpt.py").write_text("def two(a, b): ...\ndef workload(shard): ...\n")
    (project / "models").mkdir()
    (project / "models/small.py").write_text("raise Error\ndef first(shard): ...\n")


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
def test_the_command_that_is_meant(in_process, typed, meant):
    done = in_process(*typed.split(), code=2)
    assert (done.stdout, done.stderr.count("\n")) == ("", 1), done.stderr
    assert f": scalebench {meant}." in done.stderr


@cases(
    "given, meant",
    ("my_gpt.py", "my_gpt:workload"),
    ("./my_gpt.py:two", None),
    ("my_gpt:", "my_gpt:workload"),
    ("my_gpt.workload", "my_gpt:workload"),
    ("models/small.py:first", "models.small:first"),
    ("my_gtp", None),
)
def test_a_workload_without_its_function(in_process, given, meant):
    err = in_process("run", "ddp", "--dry-run", "--workload", given, code=2).stderr
    assert err.count("\n") == 1
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
def test_a_group_alone_prints_its_help(in_process, words):
    done = in_process(*words, code=0)
    assert done.stderr == "" and "Commands:\n" in done.stdout and done.stdout.count("\n") > 8


def test_help_begins_with_the_users_own_script(in_process):
    out = in_process("--help").stdout
    first = next(line for line in out.splitlines() if line.startswith("  scalebench "))
    assert first.strip() == "scalebench run --gpus 1,2,4 -- train.py --lr 0.1"
