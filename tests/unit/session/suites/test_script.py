"""The suite of a user's script, and options that do not fit it."""

from pathlib import Path
from typing import Any

import pytest

from scalebench.cli.text_tables import render_plan
from scalebench.errors import UsageError
from scalebench.records.paths import RunPaths
from scalebench.session.launches.cell_runner import why_not_again
from scalebench.session.plan import Machine, Request, make_plan
from scalebench.session.plan.forecast import forecast, seconds_of_a_launch
from scalebench.session.storing.store import RunStore
from scalebench.session.suites.script import script_suite
from scalebench.spec.script import ScriptTarget
from tests.builders.runs import make_cell, make_failed, make_info
from tests.builders.sessions import NO_FLAGS


@pytest.fixture(autouse=True)
def train_py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)


def suite(*words: str, **flags: Any):
    return script_suite(["train.py", *words], NO_FLAGS | flags)


def test_an_earlier_run_of_the_script_tells_how_long_a_run_takes(tmp_path):
    plan = plan_of()
    runs = tmp_path / "reports"
    assert seconds_of_a_launch([suite()], runs) is None
    assert forecast(plan, {}).wall_s is None
    for name, seconds in (("20260101T", 99.0), ("20260102T", 24.0)):
        paths = RunPaths(runs / name)
        paths.cells.mkdir(parents=True)
        store = RunStore.create(paths, make_info(plan.cells), None, None)
        store.keep_result(make_failed(plan.cells[0]).model_copy(update={"wall_s": seconds}))
    assert seconds_of_a_launch([suite("--lr", "2")], runs) == 24.0
    foreseen = forecast(plan, {}, 24.0)
    assert foreseen.wall_s == 4 * 24.0
    assert "about 96 s" in render_plan(foreseen, plan)
    other = suite().model_copy(update={"script": ScriptTarget(name="x", program="x.py")})
    assert seconds_of_a_launch([other], runs) is None


def test_a_batch_in_the_arguments_is_divided():
    assert suite("{rank_batch}", batch_size=32).scaling == "strong"
    assert suite("{rank_batch}", batch_size=32, scaling="weak").scaling == "weak"
    # A script that takes no batch divides its own, if its user says so: nothing to divide here.
    assert suite(scaling="strong").scaling == "weak"
    assert suite(scaling="strong").script.scaling == "strong"


@pytest.mark.parametrize(
    ("words", "flags", "complaint"),
    [
        (["{rank_batch}"], {}, "give --batch-size"),
        ([], {"batch_size": 32}, "--batch-size does not reach the script"),
        ([], {"workload": "gpt"}, "--workload is for scalebench's own workloads"),
        ([], {"compile": True}, "--compile is for"),
        ([], {"suites": ("ddp",)}, "Give a suite"),
        ([], {"python": "/nowhere/python"}, "There is no interpreter /nowhere/python"),
        ([], {"samples_per_step": "{global_batch}"}, "names a batch that nothing gives"),
        ([], {"samples_per_step": "many"}, "is not a number of samples"),
    ],
)
def test_options_that_do_not_fit(words, flags, complaint):
    with pytest.raises(UsageError, match=complaint):
        suite(*words, **flags)


def test_a_script_that_failed_is_not_launched_again_at_the_same_size():
    cells = {(c.world_size, c.repeat): c for c in plan_of().cells}
    failed = make_failed(cells[2, 0])
    reason = why_not_again(cells[2, 1], [failed])
    assert reason is not None and reason.startswith("not launched again: launch 0 failed")
    assert why_not_again(cells[1, 1], [failed]) is None
    other = make_cell("ddp", 2)
    assert why_not_again(other.model_copy(update={"repeat": 1}), [make_failed(other)]) is None


def test_a_script_that_does_not_exist():
    with pytest.raises(UsageError, match=r"There is no script train2\.py"):
        script_suite(["train2.py"], NO_FLAGS)


def plan_of(**flags: Any):
    request = Request(world_sizes=(2,), device="cpu", batch_size=flags.get("batch_size"), repeats=2)
    words = ("{rank_batch}",) if "batch_size" in flags else ()
    return make_plan(request, [suite(*words, **flags)], Machine(0, 2))
