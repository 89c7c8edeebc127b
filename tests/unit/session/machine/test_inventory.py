import os

import pytest

from scalebench.cli.text_tables import render_inventory
from scalebench.session.machine.inventory import take_inventory

SURVEY = {"strategies": ["ddp", "plain"], "devices": [], "torch": "2.13.0", "backends": ["gloo"]}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def by_name(kind, survey=SURVEY):
    return {entry["name"]: entry for entry in take_inventory(survey)[kind]}


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


def test_every_case_is_described_in_one_line_that_no_other_case_of_its_suite_has():
    for name, suite in by_name("suites").items():
        lines = [case["about"] for case in suite.get("cases", ())]
        assert all(lines) and len(set(lines)) == len(lines), name
