import json
import os

import pytest

from scalebench.cli.text_tables import render_inventory
from scalebench.records.paths import bundled_suites
from scalebench.session.machine.inventory import describe, take_inventory
from scalebench.spec import Case, Ddp
from tests.builders.runs import make_small_run, make_stored_run

SURVEY = {"strategies": ["ddp", "plain"], "devices": [], "torch": "2.13.0", "backends": ["gloo"]}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def by_name(kind, survey=SURVEY):
    return {entry["name"]: entry for entry in take_inventory(survey)[kind]}


def test_what_can_run_has_no_reason_not_to_and_what_cannot_has_one():
    strategies = by_name("strategies")
    assert strategies["ddp"]["cannot_run"] is None
    assert strategies["ddp"]["about"]
    assert by_name("launchers")["local"]["cannot_run"] is None
    assert {"external", "lab"} <= by_name("launchers").keys()


def test_a_model_that_no_device_can_hold_says_so():
    devices = [{"memory_bytes": 8e9}, {"memory_bytes": 16e9}]
    found = by_name("workloads", {**SURVEY, "devices": devices})
    assert found["gpt-350m"]["cannot_run"] is None
    assert "exceeds the largest device's 16 GB" in found["gpt-1.3b"]["cannot_run"]
    assert "21 GB" in found["gpt-1.3b"]["cannot_run"]


def test_listing_executes_no_suite_of_this_folder(here, capfd):
    """Whoever may write ./suites would else run code as everybody who looks what there is."""
    (here / "suites").mkdir()
    ran = "open('ran', 'w')\n"
    whole = "from scalebench import Suite\nSUITE = Suite(name='x', question='Is it \x1b[31m?')\n"
    files = {
        "fsdp": ran + whole,
        "mine": ran + "from other import *",
        "none": ran + "# a training script without a SUITE",
        "wrong": ran + "SUITE = (",
        "zero": ran + "SUITE = 1 \0",
        "warns": ran + "SUITE = '\\q'",
        "deep": ran + "SUITE = " + "-" * 100_000 + "1",
        "large": ran + "#" * 2_000_000 + "\nSUITE = 1",
    }
    for name, text in files.items():
        (here / "suites" / f"{name}.py").write_text(text)
    (here / "suites" / "bytes.py").write_bytes(b"SUITE = '\xff'")
    os.mkfifo(here / "suites" / "pipe.py")
    suites = by_name("suites")
    assert not (here / "ran").exists() and capfd.readouterr() == ("", "")
    assert suites["fsdp"]["hides_bundled"] and not suites["mine"]["hides_bundled"]
    assert suites["fsdp"]["about"].startswith("Is it") and "cases" not in suites["fsdp"]
    assert {n for n in (*files, "bytes", "pipe") if suites[n]["cannot_run"]} == {
        *("none", "wrong", "zero", "deep", "large", "bytes", "pipe")
    }
    text = render_inventory({"suites": list(suites.values())})
    assert "suites/fsdp.py, not the suite of this name that comes with scalebench" in text


def test_a_source_checkout_hides_no_suite_of_its_own(monkeypatch):
    monkeypatch.chdir(bundled_suites().parent)
    suites = by_name("suites")
    assert suites["ddp"]["cases"] and "hides_bundled" not in suites["ddp"]


def test_runs_are_listed_with_how_far_they_came_and_damaged_ones_by_name(here):
    make_stored_run(here / "reports" / "whole")
    part = make_stored_run(here / "reports" / "part")
    next(part.cells.glob("*.json.gz")).unlink()
    (here / "reports" / "damaged").mkdir()
    (here / "reports" / "damaged" / "run.json").write_text("{")
    runs = by_name("runs")
    total = len(make_small_run())
    assert runs["whole"]["about"] == f"complete, {total} of {total} launches"
    assert runs["part"]["about"] == f"complete, {total - 1} of {total} launches"
    assert "run.json" in runs["damaged"]["cannot_run"]


def test_the_inventory_is_json_and_can_be_shown():
    inventory = take_inventory(SURVEY)
    assert json.loads(json.dumps(inventory)) == inventory
    assert "gpt-124m" in render_inventory(inventory)


def test_every_case_is_described_in_one_line_that_no_other_case_of_its_suite_has():
    for name, suite in by_name("suites").items():
        lines = [case["about"] for case in suite.get("cases", ())]
        assert all(lines) and len(set(lines)) == len(lines), name


def test_a_case_says_what_differs_from_the_defaults_of_its_suite():
    loaders = {c["name"]: c["about"] for c in by_name("suites")["ddp"]["cases"]}
    assert loaders["ddp-loader"].endswith("buckets), batches loaded by 2 worker processes")
    assert loaders["ddp-loader-inline"].endswith("batches loaded by the rank itself")
    own = Case(name="own", strategy=Ddp(), workload="cnn", batch_size=8)
    assert describe(own) == "DDP (25 MiB buckets), workload cnn, batch 8"
    text = render_inventory(take_inventory(SURVEY))
    assert "DDP (25 MiB buckets, static graph); optional: select it with -k" in text


@pytest.mark.parametrize("kinds", [("suites",), ("runs", "launchers"), ("workloads",)])
def test_only_the_kinds_that_are_asked_for(kinds):
    survey = SURVEY if "workloads" in kinds else {}
    assert tuple(take_inventory(survey, kinds=kinds)) == kinds
    assert take_inventory(survey, kinds=kinds) == {k: take_inventory(SURVEY)[k] for k in kinds}
