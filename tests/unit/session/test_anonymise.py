"""Names of hosts and users, and paths, are taken out of texts, and nothing else is."""

import os
import platform

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.records.run import Failure
from scalebench.session.anonymise import Anonymiser, names_of_this_machine
from tests.builders.runs import make_cell, make_result

NAMES = {"node7": "<host>", "ann": "<user>", "/scratch/ann": "<folder>", "node7.x.org": "<host>"}


def test_names_are_replaced_longest_first_and_only_as_words() -> None:
    text = Anonymiser(NAMES).text
    assert (
        text("rank 1 on node7.x.org: /scratch/ann/model.py")
        == "rank 1 on <host>: <folder>/model.py"
    )
    assert text("ann said: annotated, planned") == "<user> said: annotated, planned"
    assert text("File '/home/bob/x.py', line 3") == "File '<home>/x.py', line 3"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ('File "/mnt/data/acme/model.py", line 3', 'File "<path>", line 3'),
        ("--link-profile=/srv/cluster-a/link.json", "--link-profile=<path>"),
        ("cannot read /data/x.json: no such file", "cannot read <path>: no such file"),
        ("/scratch/ann/models/a.py", "<folder>/models/a.py"),
        ("/dev/shm has 64 MB; /proc/self/cgroup", "/dev/shm has 64 MB; /proc/self/cgroup"),
        ("9 samples/s, 2/3 of it, and/or less", "9 samples/s, 2/3 of it, and/or less"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("-k a/b or /tmp", "-k a/b or /tmp"),
    ],
)
def test_paths_are_replaced_and_nothing_that_only_looks_like_one(text, clean) -> None:
    assert Anonymiser(NAMES).text(text) == clean


def test_a_result_keeps_its_numbers_and_loses_its_names() -> None:
    failure = Failure(rank=0, kind="exit", message="node7 died", traceback="/scratch/ann/a.py")
    whole = make_result(make_cell("ddp", 2)).model_copy(update={"failure": failure})
    named = whole.model_copy(
        update={"ranks": [r.model_copy(update={"host": "node7"}) for r in whole.ranks]}
    )
    clean = Anonymiser(NAMES).model(named)
    assert [r.step_s for r in clean.ranks] == [r.step_s for r in whole.ranks]
    assert clean.cell == whole.cell
    assert {r.host for r in clean.ranks} == {"<host>"}
    assert not {"node7", "ann"} & {*clean.model_dump_json().replace("/", '"').split('"')}


def test_a_host_that_is_called_like_a_field_breaks_nothing() -> None:
    result = make_result(make_cell("ddp", 2))
    names = {"ok": "<host>", "ddp": "<user>", "rank": "<x>", "cpu": "<y>"}
    assert Anonymiser(names).model(result).cell == result.cell


@given(st.text())
def test_no_name_of_this_machine_is_left_in_any_text(text: str) -> None:
    anonymiser = Anonymiser(names_of_this_machine())
    host = platform.node()
    clean = anonymiser.text(f"{text} {host} {os.getcwd()}/x {text}")
    assert host not in clean.split() and f"{os.getcwd()}/x" not in clean.split()
