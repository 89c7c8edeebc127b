"""Why a script's rank left no measurement, in one line."""

from pathlib import Path

import pytest

from scalebench.spec.script import ScriptTarget
from scalebench.worker.attach.problems import NO_STEP, ScriptProblem
from scalebench.worker.attach.script import describe
from scalebench.worker.script.errors import error_of

SCRIPT = ScriptTarget(name="train", program="train.py")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.write_text("starting\ntrain.py: error: --lr is required\n\n")
    return path


class OutOfMemoryError(RuntimeError):
    """As torch's."""


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ValueError("bad\nlines"), "exception", "ValueError: bad"),
        (ValueError(), "exception", "ValueError: ValueError"),
        (ScriptProblem(NO_STEP), "usage", f"train.py: {NO_STEP}"),
        (OutOfMemoryError("full"), "oom", "OutOfMemoryError: full"),
        (MemoryError("full"), "oom", "MemoryError: full"),
        (RuntimeError("Connection closed by peer"), "peer", None),
        (ValueError("Connection closed by peer"), "exception", None),
        (SystemExit("no data"), "exit", "train.py ended itself: no data"),
        (SystemExit(3), "exit", "train.py ended itself with exit code 3: train.py: error: --lr"),
        (SystemExit(2), "usage", "train.py did not accept its arguments: train.py: error: --lr is"),
    ],
    ids=repr,
)
def test_what_the_script_raised(error, kind, message, log):
    found = error_of(describe(error, "its traceback"), 1, SCRIPT, log)
    assert found.kind == kind
    assert found.message.startswith(message or "")
    assert found.traceback == "its traceback"
    assert "\n" not in found.message


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        (-9, "signal", "train.py was killed by SIGKILL"),
        (-11, "signal", "train.py was killed by SIGSEGV"),
        (7, "exit", "train.py ended with exit code 7: train.py: error: --lr is required"),
    ],
)
def test_a_process_that_left_nothing(code, kind, message, log):
    found = error_of(None, code, SCRIPT, log)
    assert (found.kind, found.message) == (kind, message)


def test_a_log_that_is_not_there(tmp_path):
    assert "its log cannot be read" in error_of(None, 7, SCRIPT, tmp_path / "none").message
