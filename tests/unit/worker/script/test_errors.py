"""Why a script's rank left no measurement, in one line."""

from pathlib import Path

import pytest

from scalebench.spec.script import ScriptTarget
from scalebench.worker.attach.problems import NO_GROUP, NO_STEP, NoStep, ScriptProblem
from scalebench.worker.attach.script import describe
from scalebench.worker.script.errors import ended, error_of

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
        (ScriptProblem(NO_GROUP), "usage", f"train.py: {NO_GROUP}"),
        (NoStep("Advice"), "ended", f"train.py: {NO_STEP}. It ended by itself"),
        (
            ModuleNotFoundError("No module named 'torch'"),
            "usage",
            f"{SCRIPT.python}, which runs train.py, has no torch",
        ),
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


def test_a_port_that_is_taken_has_its_remedy(log):
    error = RuntimeError("port: 29500, name: EADDRINUSE, message: address already in use")
    found = error_of(describe(error, None), 1, SCRIPT, log)
    assert "29500" in found.message and "Leave MASTER_PORT as it is" in found.message


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ImportError("No module named pack"), "usage"),
        (ImportError("Error while finding module specification for 'pack.train'"), "usage"),
        (ImportError("No module named transformers"), "exception"),
        (ModuleNotFoundError("No module named 'pack.models'"), "exception"),
    ],
)
def test_a_module_that_does_not_exist(error, kind, log):
    module = ScriptTarget(name="pack", program="pack.train", module=True)
    found = error_of(describe(error, None), 1, module, log)
    assert found.kind == kind
    assert found.message.startswith("There is no module pack.train") == (kind == "usage")
    assert error_of(describe(error, None), 1, SCRIPT, log).kind == "exception"


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


def test_a_script_that_ended_by_itself_says_what_it_printed_and_went_on_from(tmp_path):
    logs = tmp_path / "logs" / "train.script.n2.r0"
    logs.mkdir(parents=True)
    for rank, text in enumerate(("one\nResuming at epoch 40\n\nDone.\n", "")):
        (logs / f"rank{rank}.log").write_text(text)
    told = describe(NoStep("Do this"), None)
    found = error_of(told, 0, SCRIPT, logs / "rank1.log").message  # rank 0 alone has printed
    assert "one / Resuming at epoch 40 / Done (logs/train.script.n2.r0/rank0.log). Do this" in found
    told["loaded"] = ["snapshot.pt"]
    found = error_of(told, 0, SCRIPT, logs / "rank0.log").message
    assert "went on from snapshot.pt" in found and "--output {run_dir}" in found


def test_the_last_words_of_a_script_are_not_torch_s_warnings(tmp_path):
    log = tmp_path / "rank1.log"
    log.write_text(
        "Resuming from snapshot at epoch 40\n[rank1]:[W1126 20:48:52.7 socket.cpp:469] poll\n"
        "[W1126 20:48:53.2 socket.cpp:494] timed out\n"
    )
    assert "printed last: Resuming from snapshot at epoch 40 (" in ended("It ended", "", (), log)
