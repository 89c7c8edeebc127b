"""What Tab offers: suites, workloads, cases, formats and runs; files where nothing fits."""

import pytest
from click.shell_completion import ShellComplete

from scalebench.cli import cli
from tests.builders.runs import make_stored_run
from tests.examples import cases

FILES = ["file"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for variable in ("SCALEBENCH_OUT", "SCALEBENCH_WORKLOAD"):
        monkeypatch.delenv(variable, raising=False)
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
def test_names(line, some):
    found = offered(line)
    assert some <= {*found}
    assert all(name.startswith(line.rpartition("|")[2]) for name in found)


@cases("line", "run|./su", "run|--|tr", "run|--gpus|2|--|train.py|dd", "run|mine|-k|d", "show|/tm")
def test_files_where_no_name_fits(line, tmp_path):
    assert offered(line) == FILES
    assert not (tmp_path / "ran").exists()
