import pytest

from scalebench.errors import UsageError
from scalebench.session.plan.make import about_scripts
from scalebench.session.suites.script import script_suite
from tests.builders.runs import make_cell
from tests.builders.sessions import NO_FLAGS
from tests.examples import cases


@pytest.fixture(autouse=True)
def here(project):
    (project / "train.py").touch()


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
