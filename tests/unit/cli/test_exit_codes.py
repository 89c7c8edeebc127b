"""1 is a verdict: nothing that goes wrong in scalebench itself, or around it, exits with it."""

import os
import stat
import subprocess
import sys

import pytest

from scalebench import cli
from scalebench.cli import main, view
from scalebench.errors import ExitCode

START = [sys.executable, "-m", "scalebench"]
UNKNOWN = ["show", "--schedule", "no-such"]
DRAWN = ["show", "--schedule", "gpipe", "-p", "2", "-m", "2"]


def left(arguments):
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    return raised.value.code


def shell(words, redirected, **settings):
    command = f'exec "$@" {redirected}'
    return subprocess.run(
        ["sh", "-c", command, "sh", *START, *words], capture_output=True, text=True, **settings
    )


@pytest.mark.parametrize(
    ("words", "redirected", "code", "told"),
    [
        (UNKNOWN, "2>&-", 2, ""),
        (UNKNOWN, "2>/dev/full", 2, ""),
        (DRAWN, ">&- 2>&- <&-", 0, ""),
        (DRAWN, ">/dev/full", 5, "Standard output cannot be written: No space left on device"),
        (["run", "--show-config"], ">/dev/full", 5, "Standard output cannot be written"),
    ],
)
def test_streams_that_are_closed_or_full(tmp_path, words, redirected, code, told):
    done = shell(words, redirected, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert told in done.stderr and len(done.stderr.splitlines()) == bool(told), done.stderr


@pytest.mark.parametrize("words", [DRAWN, ["run", "--show-config"], ["run", "--help"]])
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


@pytest.mark.parametrize(
    ("happens", "code"),
    [
        (fails(KeyError("row")), 70),
        (fails(AssertionError()), 70),
        (fails(SystemExit(1)), 70),
        (fails(EOFError()), 70),
        (lambda _: endless(), 70),
        (fails(MemoryError()), 5),
        (fails(BrokenPipeError(32, "Broken pipe")), 5),
        (fails(KeyboardInterrupt()), 130),
    ],
)
def test_what_nobody_foresaw_is_a_defect_and_no_verdict(
    tmp_path, monkeypatch, capsys, happens, code
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(view, "resolve_run", happens)
    assert left(["show"]) == code
    told = capsys.readouterr().err.strip().splitlines()
    files = list(tmp_path.iterdir())
    assert len(files) == (code == 70) and len(told) == (code != 130), told
    for file in files:
        assert str(file) in told[0] and "Report it" in told[0]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert "Traceback" in file.read_text() and "resolve_run" in file.read_text()


@pytest.mark.parametrize(
    ("raises", "code"), [("ImportError('gone')", 5), ("ValueError", 70), ("KeyboardInterrupt", 130)]
)
def test_a_package_that_cannot_be_imported(tmp_path, raises, code):
    (tmp_path / "click.py").write_text(f"raise {raises}")
    done = shell(["show"], "", cwd=tmp_path, env=os.environ | {"TMPDIR": str(tmp_path)})
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert len(done.stderr.splitlines()) == (code != 130)


@pytest.mark.parametrize(("rank", "speaks"), [("0", True), ("1", False)])
def test_the_silent_wait_before_they_end_the_world(monkeypatch, capsys, rank, speaks):
    for name, value in {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank,
                        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    waited = []
    monkeypatch.setattr(cli.time, "sleep", waited.append)
    with pytest.raises(SystemExit) as left:
        cli.main(["run", "ddp", "--launcher", "lab", "--link", "50mbit"])
    assert left.value.code == ExitCode.USAGE
    assert ("Leave out --launcher" in capsys.readouterr().err) == speaks
    assert waited == ([] if speaks else [cli.SILENT_S])
