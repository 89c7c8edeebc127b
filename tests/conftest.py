"""What several kinds of test need: the command line in a process of its own."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from scalebench.cli import main
from tests.forks import forks

# How long an example takes says nothing on a machine that others use as well.
settings.register_profile("shared machine", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=20)
settings.load_profile("shared machine")
gc.disable()  # what is imported and collected is no garbage
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

PATIENCE_S = 600.0
"""A shared machine may be ten times as slow as it was; what hangs is ended all the same."""

Done = subprocess.CompletedProcess[str]
Scalebench = Callable[..., Done]


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with a cache of its own and no settings from outside."""
    for name in [name for name in os.environ if name.startswith("SCALEBENCH_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")  # readline sets the size of a terminal where there is none
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def checked(done: Done, code: int | None) -> Done:
    """Return a finished process; fails on another exit code than is expected, if any is."""
    assert code in (None, done.returncode), (done.returncode, done.stdout, done.stderr)
    return done


def ran(
    words: Sequence[str | Path],
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    code: int | None = None,
) -> Done:
    done = subprocess.run(
        words, cwd=cwd, env=env, capture_output=True, text=True, timeout=PATIENCE_S
    )
    return checked(done, code)


def ended(process: Any, code: int, limit_s: float = PATIENCE_S) -> tuple[str, str]:
    """Wait for the end of a process, with an exit code; return what it printed."""
    stdout, stderr = process.communicate(timeout=limit_s)
    assert process.returncode == code, (process.returncode, stdout, stderr)
    return stdout, stderr


def scalebench_in(folder: Path, *arguments: str, code: int | None = None, **variables: str) -> Done:
    """Run the command line in a folder, for tests that share what comes of it.

    The process is a fork with everything imported, see `tests.forks`.
    """
    there = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), **variables}
    return checked(forks().run("scalebench", arguments, folder, PATIENCE_S, there), code)


@pytest.fixture
def scalebench(project: Path) -> Scalebench:
    """Run the command line in ``project``, in a fork; returns the finished process."""

    def run(*arguments: str, timeout: float = PATIENCE_S, code: int | None = None) -> Done:
        return checked(forks().run("scalebench", arguments, project, timeout), code)

    return run


@pytest.fixture
def in_process(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Scalebench:
    """Run the command line as `scalebench` does, in this process: for what starts no ranks."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the tests keep their handlers

    def run(*arguments: str, code: int | None = None) -> Done:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        found = ended.value.code
        assert isinstance(found, int)
        done = subprocess.CompletedProcess(arguments, found, *capsys.readouterr())
        return checked(done, code)

    return run


@pytest.fixture
def start_scalebench(project: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start the command line in ``project``, and return at once.

    It is a fork, unless it is started by another program, ``before`` it.
    """

    def start(*arguments: str, before: Sequence[str] = ()) -> Any:
        if before:
            process: Any = subprocess.Popen(
                [*before, sys.executable, "-m", "scalebench", *arguments],
                cwd=project,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        else:
            process = forks().start("scalebench", arguments, project)
        started.append(process)
        return process

    started: list[Any] = []
    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
            process.communicate()
