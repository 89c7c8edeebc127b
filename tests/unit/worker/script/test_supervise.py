"""How the process of a user's script ends."""

import pytest

from scalebench.records.paths import LaunchPaths
from scalebench.spec import Script
from scalebench.spec.script import ScriptTarget
from scalebench.worker.script import supervise
from tests.builders.runs import make_cell

WHEN_MEASURED = {
    "ends": "exit 0", "fails": "exit 7", "stays": "exec sleep 60",
    "ignores": "trap '' TERM\nexec sleep 60",
}  # fmt: skip


def ended(tmp_path, monkeypatch, then, to_the_end=False):
    raw_file = tmp_path / "attach0.json"
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ntouch {raw_file}\n{then}\n")
    python.chmod(0o755)
    target = ScriptTarget(
        name="train", program="train.py", python=str(python), to_the_end=to_the_end
    )
    cell = make_cell("script", 1, strategy=Script(), backend=None, workload=target)
    monkeypatch.setattr(supervise, "END_GRACE_S", 0.2)
    monkeypatch.setattr(supervise, "GRACE_S", 0.2)
    monkeypatch.setattr(supervise, "POLL_S", 0.05)
    monkeypatch.setattr(supervise, "_pass_on_signals", lambda *_: None)
    addresses = {"host": "127.0.0.1", "master": 1, "run_dir": str(tmp_path / "run_dir"), "key": ""}
    identity = {"rank": 0, "local_rank": 0}
    return supervise.run_process({}, cell, LaunchPaths(tmp_path), identity, addresses, {}, raw_file)


@pytest.mark.parametrize(
    ("how", "expected"),
    [("ends", (0, False)), ("fails", (7, False)), ("stays", (-15, True)), ("ignores", (-9, True))],
)
def test_a_script_that_does_not_end_is_killed_and_that_is_known(
    tmp_path, monkeypatch, capsys, how, expected
):
    assert ended(tmp_path, monkeypatch, WHEN_MEASURED[how]) == expected
    assert ("did not end after its measurement; killed" in capsys.readouterr().out) is expected[1]


def test_a_script_that_runs_to_its_end_is_not_killed(tmp_path, monkeypatch):
    assert ended(tmp_path, monkeypatch, "exec sleep 0.6", to_the_end=True) == (0, False)
