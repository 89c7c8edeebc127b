"""Processes below this one: found, asked to end, and then killed."""

import subprocess
import sys
import time

import pytest

from scalebench.worker.process import family

IS_DEAF = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); "
    "time.sleep(600)"
)


@pytest.mark.parametrize(
    ("code", "stopped", "ended_by"),
    [
        ("import time; print(flush=True); time.sleep(600)", False, -15),
        ("import time; print(flush=True); time.sleep(600)", True, -9),
        (IS_DEAF, False, -9),
    ],
)
def test_what_does_not_heed_sigterm_is_killed_after_the_grace(
    monkeypatch: pytest.MonkeyPatch, code: str, stopped: bool, ended_by: int
) -> None:
    monkeypatch.setattr(family, "GRACE_S", 0.2)
    spared = {process.pid for process in family.descendants()}
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    child.stdout.close()
    (found,) = family.descendants(spared)
    assert family.above(found, {child.pid}) == child.pid
    if stopped:
        found.suspend()
        end = time.monotonic() + 10
        while not family.is_stopped(found) and time.monotonic() < end:
            time.sleep(0.01)
    family.end_descendants(spared)
    assert child.wait(10) == ended_by
    assert family.descendants(spared) == []
