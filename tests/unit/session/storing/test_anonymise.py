import json
import os
import platform
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from scalebench.analysis.run import load_run
from scalebench.analysis.summarise import summarise
from scalebench.errors import UsageError
from scalebench.records.folder import working_on
from scalebench.records.measured.rank import RankError
from scalebench.records.run import Failure
from scalebench.session.storing import anonymise
from scalebench.session.storing.finish import RunStore, finish
from scalebench.spec.script import script_from
from tests.builders.runs import make_cell, make_info, make_record, make_result, make_small_run
from tests.builders.tracing import traced
from tests.examples import cases

NAMES = {"node7": "<host>", "ann": "<user>", "/scratch/ann": "<folder>", "node7.x.org": "<host>"}


@cases(
    "text, clean",
    ('File "/mnt/data/acme/model.py", line 3', 'File "<path>", line 3'),
    ("--link-profile=/srv/cluster-a/link.json", "--link-profile=<path>"),
    ("cannot read /data/x.json: no such file", "cannot read <path>: no such file"),
    ("/scratch/ann/models/a.py", "<folder>/models/a.py"),
    ("/dev/shm has 64 MB; /proc/self/cgroup", "/dev/shm has 64 MB; /proc/self/cgroup"),
    ("9 samples/s, 2/3 of it, and/or less", "9 samples/s, 2/3 of it, and/or less"),
    ("https://example.org/a/b", "https://example.org/a/b"),
    ("-k a/b or /tmp", "-k a/b or /tmp"),
    ("PYTHONPATH=/srv/a:/srv/b/c", "PYTHONPATH=<path>:<path>"),
    ("NODE7 and Node7.Corp.example, not node70", "<host> and <host>, not node70"),
    ("mail ann@node7, job-ann_3.", "mail <user>@<host>, job-<user>_3."),
    ("tcp://10.1.2.3:29500 inet:10.9.9.9/8", "tcp://<address>:29500 inet:<address>/8"),
    ("[fe80::1]:80 2001:db8::ff00:42:8329.", "[<address>]:80 <address>."),
    ("127.0.0.1 ::1 0.0.0.0 torch 2.13.0 12:30:45", "127.0.0.1 ::1 0.0.0.0 torch 2.13.0 12:30:45"),
    ("c10d::allreduce_ std::vector<int> at::add", "c10d::allreduce_ std::vector<int> at::add"),
    ("<host> died in <home>/x", "<host> died in <home>/x"),
)
def test_paths_are_replaced_and_nothing_that_only_looks_like_one(text, clean):
    assert anonymise.Cleaner(NAMES).text(text) == clean


def test_the_other_machines_of_a_launch_lose_their_names_too():
    failure = Failure(rank=1, kind="exit", message="lost Node8.corp and node9")
    ranks = [make_record(n, host=f"node{8 + n}.corp.example") for n in range(2)]
    result = make_result(make_cell("ddp", 2), ranks=ranks, failure=failure)
    clean = anonymise.Cleaner(NAMES).model(result)
    assert [rank.host for rank in clean.ranks] == ["<host 1>", "<host 2>"]
    assert clean.failure.message == "lost <host 1> and <host 2>"


@given(st.text())
def test_no_name_of_this_machine_is_left_in_any_text(text):
    cleaner = anonymise.Cleaner(anonymise.names_of_this_machine())
    host = platform.node()
    clean = cleaner.text(f"{text} {host} {os.getcwd()}/x {text}")
    assert host not in clean.split() and f"{os.getcwd()}/x" not in clean.split()
    assert cleaner.text(clean) == clean


def filled(value, text):
    """The same record with a text wherever its schema takes one, but for words of our own."""
    changes: dict[str, Any] = {}
    for name, field in type(value).model_fields.items():
        old, kinds = getattr(value, name), {field.annotation, *get_args(field.annotation)}
        if isinstance(old, BaseModel):
            changes[name] = filled(old, text)
        elif isinstance(old, list | tuple) and old and isinstance(old[0], BaseModel):
            changes[name] = type(old)(filled(one, text) for one in old)
        elif name in anonymise.OUR_WORDS or any(
            getattr(one, "pattern", None) for one in field.metadata
        ):
            continue
        elif name != "gate" and str in kinds and "Literal" not in repr(field.annotation):
            as_before = {dict: {"a": text, text: text}, list: [text, f"--a={text}"], tuple: (text,)}
            changes[name] = as_before.get(type(old), text)
            if "float" in repr(field.annotation):
                changes[name] = {text: 1.0}
            if kinds & {Any, object}:
                changes[name] = {**old, "b": [{"c": text}], text: {"d": text}}
    return value.model_copy(update=changes)


SECRET = "sk-0123456789abcdef"
SCRIPT = script_from(
    ["/srv/acme/canary.py", "--project", "moonshot", "--lr=0.125", "--api-key", SECRET], "python"
)
LEFT_OUT = {
    *("carol", "bighost", "corp.example", "10.1.2.3", "fe80::7", "/srv/acme", "canary.py"),
    *("moonshot", SECRET, "hunter2"),
}


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setenv("HOME", "/remote/carol")
    monkeypatch.setattr("getpass.getuser", lambda: "carol")
    monkeypatch.setattr("platform.node", lambda: "bighost")
    return (
        "x carol /remote/carol/p bighost BIGHOST bighost.corp.example 10.1.2.3 [fe80::7]:80 "
        f"/srv/acme/canary.py canary.py moonshot {SECRET} password=hunter2 y"
    )


def whole_run(script):
    operations = [traced.make_operation(*times) for times in ((10, 40), (50, 70))]
    trace = traced.make_trace(operations, [(0, 30)])
    ranks = (traced.make_traced_record(rank, trace) for rank in range(2))
    results = [*make_small_run(), traced.make_traced_result(*ranks, repeat=5)]
    failed = make_result(make_cell("ddp", 2, repeat=9), status="failed", reason="it broke")
    error = RankError(kind="exit", message="it broke", time_ns=1)
    found = {
        "failure": Failure(rank=0, kind="exit", message="it broke"),
        "ranks": [make_record(0, error=error)],
    }
    results.append(failed.model_copy(update=found))
    if script:
        cells = (one.cell.model_copy(update={"workload": SCRIPT}) for one in results)
        results = [one.model_copy(update={"cell": next(cells)}) for one in results]
    info = make_info([result.cell for result in results])
    words = [SCRIPT.program, *SCRIPT.arguments] if script else []
    suites = [s.model_copy(update={"script": SCRIPT if script else None}) for s in info.spec.suites]
    spec = info.spec.model_copy(update={"suites": tuple(suites), "anonymise": True})
    changed = {"spec": spec, "command": ["scalebench", "run", "--", *words]}
    return info.model_copy(update=changed), results


def stored(root, info, results, cleaner):
    with working_on(root, new=True) as paths:
        store = RunStore.create(paths, info, None, cleaner)
        store.keep_results(results)
        finish(store.as_stored(), "complete")
        return store


def numbers(value):
    """The structure of a document with its numbers, without its texts."""
    if isinstance(value, dict | list):
        return [numbers(one) for one in (value.values() if isinstance(value, dict) else value)]
    return str if isinstance(value, str) else value


@cases("script", False, True)
def test_nothing_that_is_stored_has_a_name_in_any_text(tmp_path, here, script):
    info, results = whole_run(script)
    hostile = filled(info, here), [filled(result, here) for result in results]
    if script:  # the filled one is no script that can be started
        spec = hostile[0].spec.model_copy(update={"suites": info.spec.suites})
        hostile = hostile[0].model_copy(update={"spec": spec, "command": info.command}), hostile[1]
    cleaner = anonymise.Cleaner(anonymise.names_of_this_machine(), SCRIPT, info.command)
    log = tmp_path / "clean" / "logs" / results[0].cell.id / "rank0.log"
    clean = stored(tmp_path / "clean", *hostile, cleaner)
    log.parent.mkdir(parents=True)
    log.write_text(f"1 {here}\n2\n" + here)
    os.symlink(tmp_path / "elsewhere", log.with_name("link"))
    cleaner.files(log.parent)
    named = stored(tmp_path / "named", *hostile, anonymise.Cleaner())
    for path in (p for p in (tmp_path / "clean").rglob("*") if p.is_file()):
        text = path.read_text(errors="replace").lower()
        assert not {one for one in LEFT_OUT if one.lower() in text}, path
        assert path.stat().st_mode & 0o077 == 0
    first = json.loads((tmp_path / "clean" / "summary.json").read_text())
    again = summarise(load_run(tmp_path / "clean"))
    assert json.loads(again.model_dump_json()) == first
    assert numbers(first) == numbers(json.loads((tmp_path / "named" / "summary.json").read_text()))
    assert "0.125" in (tmp_path / "clean" / "run.json").read_text() or not script
    assert clean.run.info == hostile[0] == named.run.info  # what is launched is as it was given


@cases("script", False, True)
def test_no_secret_is_stored_in_a_run_that_keeps_its_names(tmp_path, here, script):
    info, results = whole_run(script)
    cleaner = anonymise.Cleaner(None, SCRIPT, info.command)
    stored(tmp_path / "r", filled(info, here), [filled(one, here) for one in results], cleaner)
    for path in (p for p in (tmp_path / "r").rglob("*") if p.is_file()):
        assert SECRET not in path.read_text(errors="replace"), path
        assert "hunter2" not in path.read_text(errors="replace"), path
    assert "bighost" in (tmp_path / "r" / "run.json").read_text()


def test_a_run_that_has_not_stored_its_command_needs_it_to_go_on(tmp_path, here):
    info, _ = whole_run(script=True)
    for hidden in (False, True):
        spec = info.spec.model_copy(update={"anonymise": hidden})
        given = info.model_copy(update={"spec": spec})
        names = anonymise.names_of_this_machine() if hidden else None
        kept = anonymise.Cleaner(names, SCRIPT, info.command).model(given)
        with pytest.raises(UsageError, match="Give the script again: scalebench run --resume r --"):
            anonymise.with_script(kept, None, "r")
        other = script_from([SCRIPT.program, "--lr=0.5", "--api-key", SECRET], "python")
        with pytest.raises(UsageError, match="is not the script of r"):
            anonymise.with_script(kept, other, "r")
        again = anonymise.with_script(kept, SCRIPT, "r")
        assert {cell.workload.arguments for cell in again.plan} == {SCRIPT.arguments}
        assert again.spec.suites[0].script.program == SCRIPT.program
    open_run = make_info([])
    assert anonymise.with_script(open_run, None, "r") == open_run
    with pytest.raises(UsageError, match="leave out the suite or script"):
        anonymise.with_script(open_run, SCRIPT, "r")
