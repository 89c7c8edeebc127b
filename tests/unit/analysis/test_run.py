"""Run folders as they are read: what is used, what is set aside, and what is refused."""

import fcntl
import json

import pytest

from scalebench.analysis.run import _first_format, load_run
from scalebench.errors import UsageError
from scalebench.records.files import write_checked, write_model
from scalebench.records.paths import RunPaths
from tests.builders.runs import make_cell, make_info, make_inspection, make_result

PLAIN, TWO = make_cell("plain", 1), make_cell("ddp", 2)
NEVER = make_cell("ddp", 8, skip_reason="8 ranks need 8 GPUs")


def stored(root, results=None, plan=(PLAIN, TWO), sealed=False, **changes):
    """Write a run folder; by default with a result of each cell that was planned."""
    paths = RunPaths(root)
    paths.cells.mkdir(parents=True)
    write = write_checked if sealed else write_model
    write(paths.run_json, make_info(plan, sealed=sealed, **changes))
    for result in [make_result(cell) for cell in plan] if results is None else results:
        write(paths.cell(result.cell.id), result)
    return paths


@pytest.mark.parametrize("sealed", [False, True])
def test_a_run_is_read_whole(tmp_path, sealed):
    paths = stored(tmp_path / "run", sealed=sealed)
    run = load_run(paths.root)
    assert run.results == {cell.id: make_result(cell) for cell in (PLAIN, TWO)}
    assert (run.damaged, run.unsaved, run.link) == ({}, set(), None)
    assert run.link_unavailable == "no link was calibrated in this run"
    assert run.info.status == "complete" and run.paths.root == paths.root


def test_what_is_no_run_folder_is_refused(tmp_path):
    with pytest.raises(UsageError, match="There is no run folder"):
        load_run(tmp_path / "nowhere")
    (tmp_path / "run.json").mkdir()
    with pytest.raises(UsageError, match=r"no run\.json in it"):
        load_run(tmp_path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "run.json is damaged"),
        ('["scalebench.run/1"]', "has format None"),
        ('{"format": "scalebench.run/9"}', "has format 'scalebench.run/9'; this version reads"),
        ('{"version": "1", "format": "scalebench.run/9"}', "has format 'scalebench.run/9'"),
        ('{"version": "1"}', "has format None"),
        ('{"format": "scalebench.run/1"}', "is damaged: run_id"),
    ],
)
def test_a_run_whose_description_cannot_be_used_is_refused(tmp_path, content, why):
    paths = stored(tmp_path)
    paths.run_json.write_text(content)
    with pytest.raises(UsageError, match=why):
        load_run(tmp_path)


def test_the_format_may_stand_anywhere(tmp_path):
    paths = stored(tmp_path)
    content = json.loads(paths.run_json.read_text())
    told = content.pop("format")
    paths.run_json.write_text(json.dumps({**content, "format": told}))
    assert load_run(tmp_path).info.run_id == content["run_id"]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ('{"format":"a/1"}', "a/1"),
        ('\n { "format" :\n "a/1", "more": 1}', "a/1"),
        ("{" + " " * 185 + '"format":"a/1"}', "a/1"),
        ("{" + " " * 186 + '"format":"a/1"}', None),
        ('{"more": 1, "format": "a/1"}', None),
        ("", None),
    ],
)
def test_the_format_is_told_by_the_first_two_hundred_bytes(tmp_path, content, found):
    path = tmp_path / "file.json"
    path.write_text(content)
    assert _first_format(path) == found
    assert _first_format(tmp_path) is None and _first_format(tmp_path / "nothing") is None


def test_a_run_with_checksums_has_to_have_them_all(tmp_path):
    paths = stored(tmp_path / "run", sealed=True)
    write_model(paths.cell(TWO.id), make_result(TWO))
    run = load_run(paths.root)
    assert list(run.results) == [PLAIN.id]
    assert "its checksum is missing" in run.damaged[f"{TWO.id}.json"]
    write_model(paths.run_json, make_info((PLAIN, TWO), sealed=True))
    with pytest.raises(UsageError, match="its checksum is missing"):
        load_run(paths.root)
    old = stored(tmp_path / "old")
    write_checked(old.cell(TWO.id), make_result(TWO))
    assert list(load_run(old.root).results) == [TWO.id, PLAIN.id]


@pytest.mark.parametrize(
    ("name", "result", "why"),
    [
        (TWO.id, make_result(PLAIN), "is not a cell of this run"),
        ("other", make_result(TWO), "is not a cell of this run"),
        (make_cell("ddp", 4).id, make_result(make_cell("ddp", 4)), "is not a cell of this run"),
        (
            TWO.id,
            make_result(TWO, ranks=[]),
            "is inconsistent: it does not contain each of 2 ranks",
        ),
        (TWO.id, make_result(TWO.model_copy(update={"threads": 2})), "is inconsistent: it belongs"),
    ],
)
def test_a_cell_that_does_not_belong_here_is_set_aside(tmp_path, name, result, why):
    paths = stored(tmp_path)
    write_model(paths.cell(name), result)
    run = load_run(tmp_path)
    assert list(run.damaged) == [f"{name}.json"]
    assert why in run.damaged[f"{name}.json"]
    assert set(run.results) == {PLAIN.id, TWO.id} - {name}


def test_a_cell_of_another_format_or_without_an_end_is_set_aside(tmp_path):
    paths = stored(tmp_path, status="interrupted")
    paths.cell(PLAIN.id).write_text('{"format": "scalebench.run/1"}')
    whole = paths.cell(TWO.id).read_text()
    paths.cell(TWO.id).write_text(whole[:-20])
    run = load_run(tmp_path)
    assert run.results == {}
    assert "this version reads 'scalebench.cell/1'" in run.damaged[f"{PLAIN.id}.json"]
    assert "is damaged" in run.damaged[f"{TWO.id}.json"]


def test_a_complete_run_says_which_results_it_has_lost(tmp_path):
    inspected = make_inspection(TWO)
    plan = (PLAIN, TWO, inspected.cell, NEVER)
    paths = stored(tmp_path, [make_result(PLAIN), inspected], plan)
    paths.cell(inspected.cell.id).write_text("{")
    run = load_run(tmp_path)
    assert list(run.results) == [PLAIN.id]
    assert run.damaged.keys() == {f"{TWO.id}.json", f"{inspected.cell.id}.json"}
    assert run.damaged[f"{TWO.id}.json"] == f"it is missing from {paths.cells}."
    assert "is damaged" in run.damaged[f"{inspected.cell.id}.json"], "which is the better reason"


def test_a_complete_run_that_has_lost_all_results_is_refused(tmp_path):
    stored(tmp_path / "all", [], (PLAIN, TWO, NEVER))
    with pytest.raises(UsageError, match="has none of the 2 results of this complete run"):
        load_run(tmp_path / "all")
    stored(tmp_path / "skipped", [], (NEVER,))
    assert load_run(tmp_path / "skipped").damaged == {}
    # One is there and cannot be read: then it is told which.
    paths = stored(tmp_path / "broken", [make_result(PLAIN)])
    paths.cell(PLAIN.id).write_text("{")
    assert len(load_run(paths.root).damaged) == 2


@pytest.mark.parametrize("status", ["interrupted", "over budget"])
def test_a_run_that_did_not_end_need_not_have_everything(tmp_path, status):
    stored(tmp_path, [make_result(PLAIN)], status=status)
    run = load_run(tmp_path)
    assert (run.info.status, run.damaged, list(run.results)) == (status, {}, [PLAIN.id])


def test_a_run_that_nobody_works_on_was_interrupted(tmp_path):
    paths = stored(tmp_path, [make_result(PLAIN)], status="running")
    assert load_run(tmp_path).info.status == "interrupted"
    with paths.lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert load_run(tmp_path).info.status == "running"
    assert load_run(tmp_path).info.status == "interrupted"


def test_links_that_cannot_be_read_are_named_and_the_rest_is_used(tmp_path):
    paths = stored(tmp_path)
    paths.link_profile.write_text("{")
    run = load_run(tmp_path)
    assert run.link is None and len(run.results) == 2
    assert list(run.damaged) == [paths.link_profile.name]
    assert run.link_unavailable == run.damaged[paths.link_profile.name]
    assert "is damaged" in run.link_unavailable
