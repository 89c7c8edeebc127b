import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from scalebench.cli import cli
from scalebench.cli.options import DURATION, FRACTION, MESSAGE_SIZE, POSITIVE, WORLD_SIZES, Count
from scalebench.errors import UsageError
from tests.builders.runs import make_stored_run
from tests.examples import cases


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("GPUS", "STEPS", "DEVICE", "WORKLOAD", "PRECISION", "QUICK", "BUDGET", "OUT"):
        monkeypatch.delenv(f"SCALEBENCH_{name}", raising=False)
    return tmp_path


def converted(kind, value):
    return kind.convert(value, None, None)


ACCEPTED = {
    WORLD_SIZES: [
        *(("1", (1,)), ("1,2,4,8", (1, 2, 4, 8)), ("4,1,2", (1, 2, 4)), ("2,2,1", (1, 2))),
        *((" 1 , 2 ", (1, 2)), ("65536", (65536,)), ((1, 2), (1, 2))),
        *(([1, 2], (1, 2)), (2, (2,))),  # a TOML list and integer
    ],
    DURATION: [
        *(("90", 90), ("90s", 90), ("10m", 600), ("10min", 600), ("1h", 3600), ("1.5h", 5400)),
        *((" 2 m ", 120), (30, 30), (0.5, 0.5)),
    ],
    FRACTION: [("0.02", 0.02), ("2%", 0.02), ("2 %", 0.02), (0.05, 0.05), ("1e-3", 1e-3)],
    POSITIVE: [("1e-3", 1e-3)],
    MESSAGE_SIZE: [
        *(("1000", 1000), ("64k", 64_000), ("4Mi", 4 << 20), ("200MB", 200_000_000), (500, 500))
    ],
}
REFUSED = {
    (WORLD_SIZES, "1,2,4"): [
        *("", ",", "1,", "0", "-1", "1,0", "1.5", "two", "1;2", "1 2", "1e3", "65537", "²", "٣"),
        *("9" * 5000, [], [0], [1.5], [True], ["a"]),
    ],
    (DURATION, "10m"): [
        *("", "0", "0s", "-1", "1d", "m", "1h30m", "1,5h", "inf", "nan", "1e3", ".5", "9" * 400),
        True,
    ],
    (FRACTION, "0.02 or 2%"): [
        *("", "%", "0", "1", "2", "100%", "-0.1", "-5%", "nan", "inf", "nan%", "two", "1%%", 1)
    ],
    (POSITIVE, "not a number above 0, for example 2.5"): ["", "0", "x", "-3", "nan", "inf"],
    (MESSAGE_SIZE, "4Mi"): ["", "0", "-1", "1.5", "2 pages", "1e9", "9" * 40],
}


@cases("kind", *ACCEPTED, ids=lambda kind: kind.name)
def test_values_as_people_type_them(kind):
    for typed, value in ACCEPTED[kind]:
        assert converted(kind, typed) == pytest.approx(value), typed


@cases("kind, example", *REFUSED, ids=lambda one: getattr(one, "name", one))
def test_what_is_no_value_is_refused_with_an_example(kind, example):
    for typed in REFUSED[kind, example]:
        with pytest.raises(click.BadParameter) as error:
            converted(kind, typed)
        assert example in error.value.message, typed


@cases("given", "", "0", "x", "1.5", "-3", "2e1", "nan")
def test_what_is_no_count_is_refused_with_what_is_valid(given):
    with pytest.raises(click.BadParameter, match=f"'{given}' is not a whole number of at least 2"):
        converted(Count(2), given)
    with pytest.raises(click.BadParameter, match="not a whole number from 2 to 9"):
        converted(Count(2, 9), "10")
    assert converted(Count(2, 9), "9") == 9


@given(st.text(max_size=12))
@cases("kind", WORLD_SIZES, DURATION, FRACTION, Count(1), POSITIVE)
def test_any_text_is_a_value_or_a_usage_error(kind, text):
    try:
        converted(kind, text)
    except click.BadParameter as error:
        assert repr(text) in error.message


def shown(*flags, **environment):
    words = ["run", *flags, "--show-config"]
    answer = CliRunner().invoke(cli, words, env=environment, catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return {
        line[:14].strip(): tuple(line[15:].split(None, 1)) for line in answer.output.splitlines()
    }


def test_flag_before_environment_before_file(empty_folder):
    (empty_folder / "pyproject.toml").write_text('[tool.scalebench]\ngpus = "1,2"\nsteps = 5\n')
    assert shown()["gpus"] == ("1,2", "pyproject.toml")
    assert shown(SCALEBENCH_GPUS="1,4")["gpus"] == ("1,4", "environment")
    assert shown("--gpus", "8", SCALEBENCH_GPUS="1,4")["gpus"] == ("8", "flag")
    assert shown("--gpus", "8", SCALEBENCH_GPUS="1,4")["steps"] == ("5", "pyproject.toml")


@cases("value", '"1,2"', "[2, 1]")
def test_scalebench_toml_wins_and_sizes_may_be_text_or_a_list(empty_folder, value):
    (empty_folder / "pyproject.toml").write_text("[tool.scalebench]\ngpus = 5\nrepeats = 2\n")
    (empty_folder / "scalebench.toml").write_text(f"gpus = {value}\nbatch_size = 64\n")
    told = [shown()[name] for name in ("gpus", "batch-size", "repeats")]
    from_file = [("1,2", "scalebench.toml"), ("64", "scalebench.toml")]
    assert told == [*from_file, ("—", "suite or built-in default")]


def test_a_misspelt_setting_is_answered_with_file_nearest_and_valid_names(empty_folder):
    (empty_folder / "pyproject.toml").write_text("[tool.scalebench]\ngpuz = 2\n")
    with pytest.raises(UsageError, match="Did you mean 'gpus'") as error:
        shown()
    said = str(error.value)
    assert "pyproject.toml" in said and "'gpuz'" in said and "workload" in said


@cases(
    "name, said",
    ("GPU", "There is no setting 'SCALEBENCH_GPU'. Did you mean 'SCALEBENCH_GPUS'?"),
    ("BATCHSIZE", "'SCALEBENCH_BATCH_SIZE'"),
    *((name, "") for name in ("GPUS", "FIELD", "SECRET", "LAB_TESTS", "TRUST_NETWORK")),
)
def test_a_misspelt_variable_is_warned_of_in_one_line(empty_folder, name, said):
    answer = CliRunner(env={f"SCALEBENCH_{name}": "1"}).invoke(cli, ["run", "--show-config"])
    assert answer.exit_code == 0
    assert said in answer.stderr and answer.stderr.count("\n") == bool(said)


@cases("name", "out", "resume", "k", "suites")
def test_what_belongs_to_one_call_cannot_be_configured(empty_folder, name):
    (empty_folder / "scalebench.toml").write_text(f'{name} = "x"\n')
    with pytest.raises(UsageError, match=r"scalebench\.toml"):
        shown()


@cases("text", "gpus = ", "\udcff", "[tool]\nscalebench = 3\n", "tool = 3\n", "[[tool.scalebench]]")
def test_a_file_that_cannot_be_read_is_a_usage_error_that_names_it(empty_folder, text):
    (empty_folder / "pyproject.toml").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageError, match=r"pyproject\.toml(: |.* is not TOML: .* name = value)"):
        shown()


@pytest.fixture
def here(tmp_path):
    make_stored_run(tmp_path / "reports/20250101T000000Z_ddp")
    (tmp_path / "reports/baselines/a-machine").mkdir(parents=True)
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites/mine.py").write_text("open('ran', 'w')\nSUITE = 1")


def offered(line):
    *words, incomplete = line.split("|")
    found = ShellComplete(cli, {}, "scalebench", "_COMPLETE").get_completions(words, incomplete)
    return [item.value if item.type == "plain" else item.type for item in found]


@cases(
    "line, some",
    ("run|", {"ddp", "fsdp", "mine"}),
    ("run|ddp|-k|plain or ddp-bucket", {"plain or ddp-bucket-1mb"}),
    ("run|--strategies|hs", {"hsdp"}),
    ("run|--strategies|ddp,fsd", {"ddp,fsdp"}),
    ("export|--format|ju", {"junit"}),
    ("list|w", {"workloads"}),
    *((f"{c}|2025", {"20250101T000000Z_ddp"}) for c in ("show", "report", "export", "history")),
    ("gate|--baseline|a", {"a-machine"}),
    ("compare|a-machine|", {"20250101T000000Z_ddp"}),
    ("baseline|accept|2", {"20250101T000000Z_ddp"}),
)
def test_names(here, line, some):
    assert some <= {*offered(line)}
    assert all(name.startswith(line.rpartition("|")[2]) for name in offered(line))


@cases("line", "run|./su", "run|--|tr", "run|--gpus|2|--|train.py|dd", "run|mine|-k|d", "show|/tm")
def test_files_where_no_name_fits(here, line, tmp_path):
    assert offered(line) == ["file"]
    assert not (tmp_path / "ran").exists()
