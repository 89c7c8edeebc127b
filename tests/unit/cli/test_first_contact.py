from scalebench.session.plan.make import about_scripts
from scalebench.session.suites import script_suite
from tests.builders.runs import make_cell
from tests.builders.sessions import NO_FLAGS
from tests.examples import cases


@cases(
    "argument, said",
    ("{epoch}.pt", ["train.py gets {epoch} as it stands"]),
    ("{run_dir}", []),
    ('{"a": 1}', []),
)
def test_a_name_in_braces_that_is_none_of_ours_stands(project, argument, said):
    (project / "train.py").touch()
    suite = script_suite(["train.py", argument], {**NO_FLAGS, "batch_size": None})
    cell = make_cell(strategy=suite.cases[0].strategy, workload=suite.script)
    told = [one for one in about_scripts([cell]) if "stands" in one]
    assert len(told) == len(said) and all(x in y for x, y in zip(said, told, strict=True))


@cases("words", (), ("baseline",))
def test_a_group_alone_prints_its_help(in_process, words):
    done = in_process(*words, code=0)
    assert done.stderr == "" and "Commands:\n" in done.stdout and done.stdout.count("\n") > 8


def test_help_begins_with_the_users_own_script(in_process):
    out = in_process("--help").stdout
    first = next(line for line in out.splitlines() if line.startswith("  scalebench "))
    assert first.strip() == "scalebench run --gpus 1,2,4 -- train.py --lr 0.1"
