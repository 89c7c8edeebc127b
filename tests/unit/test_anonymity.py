"""Names of hosts and users, and paths, are taken out of texts, and nothing else is."""

import os
import platform

from hypothesis import given
from hypothesis import strategies as st
from runs import make_cell, make_result

from scalebench.anonymity import Anonymiser, names_of_this_machine
from scalebench.records import Failure

NAMES = {"node7": "<host>", "ann": "<user>", "/scratch/ann": "<folder>", "node7.x.org": "<host>"}


def test_names_are_replaced_longest_first_and_only_as_words() -> None:
    text = Anonymiser(NAMES).text
    assert (
        text("rank 1 on node7.x.org: /scratch/ann/model.py")
        == "rank 1 on <host>: <folder>/model.py"
    )
    assert text("ann said: annotated, planned") == "<user> said: annotated, planned"
    assert text("File '/home/bob/x.py', line 3") == "File '<home>/x.py', line 3"


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
