"""1 is a verdict: nothing that goes wrong in scalebench itself, or around it, exits with it."""

import json
import math
import os
import stat
import subprocess
import sys
from pathlib import Path

from scalebench import cli
from scalebench.cli import view
from scalebench.records.files import write_checked, write_model
from scalebench.spec.base import Spec, as_given
from tests.builders.gated import gated_run
from tests.examples import cases

START = [sys.executable, "-m", "scalebench"]
UNKNOWN = ["show", "--schedule", "no-such"]
DRAWN = ["show", "--schedule", "gpipe", "-p", "2", "-m", "2"]


def shell(words, redirected, **settings):
    command = f'exec "$@" {redirected}'
    return subprocess.run(
        ["sh", "-c", command, "sh", *START, *words], capture_output=True, text=True, **settings
    )


@cases(
    "words, redirected, code, told",
    (UNKNOWN, "2>&-", 2, ""),
    (UNKNOWN, "2>/dev/full", 2, ""),
    (DRAWN, ">&- 2>&- <&-", 0, ""),
    (DRAWN, ">/dev/full", 5, "Standard output cannot be written: No space left on device"),
    (["run", "--show-config"], ">/dev/full", 5, "Standard output cannot be written"),
)
def test_streams_that_are_closed_or_full(tmp_path, words, redirected, code, told):
    done = shell(words, redirected, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert told in done.stderr and len(done.stderr.splitlines()) == bool(told), done.stderr


@cases("words", DRAWN, ["run", "--show-config"], ["run", "--help"])
def test_a_reader_that_has_gone_is_no_failure(tmp_path, words):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*START, *words], cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def endless():
    return endless()


def fails(error):
    def resolve(_name):
        raise error

    return resolve


@cases(
    "happens, code",
    (fails(KeyError("row")), 70),
    (fails(AssertionError()), 70),
    (fails(SystemExit(1)), 70),
    (fails(EOFError()), 70),
    (lambda _: endless(), 70),
    (fails(MemoryError()), 5),
    (fails(BrokenPipeError(32, "Broken pipe")), 5),
    (fails(KeyboardInterrupt()), 130),
)
def test_what_nobody_foresaw_is_a_defect(in_process, tmp_path, monkeypatch, happens, code):
    (tmp_path / "defects").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "defects"))
    monkeypatch.setattr(view, "resolve_run", happens)
    told = in_process("show", code=code).stderr.strip().splitlines()
    files = list((tmp_path / "defects").iterdir())
    assert len(files) == (code == 70) and len(told) == (code != 130), told
    for file in files:
        assert str(file) in told[0] and "Report it" in told[0]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert "Traceback" in file.read_text() and "resolve_run" in file.read_text()


@cases("raises, code", ("ImportError('gone')", 5), ("ValueError", 70), ("KeyboardInterrupt", 130))
def test_a_package_that_cannot_be_imported(tmp_path, raises, code):
    (tmp_path / "click.py").write_text(f"raise {raises}")
    done = shell(["show"], "", cwd=tmp_path, env=os.environ | {"TMPDIR": str(tmp_path)})
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert len(done.stderr.splitlines()) == (code != 130)


@cases("rank, speaks", ("0", True), ("1", False))
def test_the_silent_wait_before_they_end_the_world(in_process, monkeypatch, rank, speaks):
    world = {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank}
    for name, value in (world | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}).items():
        monkeypatch.setenv(name, value)
    waited = []
    monkeypatch.setattr(cli.time, "sleep", waited.append)
    done = in_process("run", "ddp", "--launcher", "lab", "--link", "50mbit", code=2)
    assert ("Leave out --launcher" in done.stderr) == speaks
    assert waited == ([] if speaks else [cli.SILENT_S])


@cases("number", "1e200", "-1.5E+0300", "9" * 200, "1e999")
def test_numbers_whose_square_is_none_are_no_measurement(in_process, number):
    content = gated_run(seed=1).model_dump(mode="json")
    content["rows"][0]["exposed_comm_s"] = {"value": "huge", "low": 0, "high": 1, "n": 3}
    Path("s.json").write_text(json.dumps(content).replace('"huge"', number))
    done = in_process("gate", "s.json", "--baseline", "s.json", code=2)
    assert "s.json is damaged: rows.0.exposed_comm_s.value" in done.stderr
    assert "Copy it again" in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_damaged_summary_of_a_run_is_made_again_when_it_is_removed(in_process):
    Path("run.json").touch()
    Path("summary.json").write_text('{"format": 1 "rows"')
    done = in_process("gate", "summary.json", "--baseline", "summary.json", code=2)
    assert "Remove it" in done.stderr and len(done.stderr.splitlines()) == 1


class Named(Spec):
    path: Path
    words: tuple[str, ...]
    ratio: float = math.nan


@cases("write", write_model, write_checked)
def test_names_that_are_no_text_are_stored_in_escaped_form(tmp_path, write):
    name, word = os.fsdecode(b"caf\xe9.py"), os.fsdecode(b"--a=\xff\xc3\xa4")
    target = tmp_path / os.fsdecode(b"run\xff.json")
    write(target, Named(path=Path(name), words=(word, "plain")))
    found = json.loads(target.read_text())
    assert (found["path"], found["words"]) == ("caf\\udce9.py", ["--a=\\udcffä", "plain"])
    assert found["ratio"] is None
    assert as_given(found["path"]) == name and as_given(found["words"][0]) == word
