import pytest
import torch.distributed as dist

from scalebench.records.paths import LaunchPaths
from scalebench.records.secret import Forged
from scalebench.spec.script import ScriptTarget
from scalebench.worker.attach.script import describe
from scalebench.worker.attach.traffic import NO_GROUP, NO_STEP, NoStep, ScriptProblem
from scalebench.worker.process.store_queue import SealedStore
from scalebench.worker.script import supervise
from scalebench.worker.script.errors import Place, ended, error_of, sent_by_rank_0
from tests.builders.runs import make_script_cell
from tests.examples import cases

SCRIPT = ScriptTarget(name="train", program="train.py")


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log"
    path.write_text("starting\ntrain.py: error: --lr is required\n\n")
    return path


PASSED_ON = """Caught it in worker 0.
Original Traceback (most recent call last):
  File "a.py", line 1, in __getitem__
    raise KeyError
KeyError

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3, in __getitem__
    raise ValueError("no x")
ValueError: no x
and more
"""
"""As of torch's DataLoader: the text of an error in another process."""


class OutOfMemoryError(RuntimeError):
    """As torch's."""


@cases(
    "error, kind, message",
    (ValueError("bad\nlines"), "exception", "ValueError: bad"),
    (ValueError(), "exception", "ValueError: ValueError"),
    (ValueError(PASSED_ON), "exception", "ValueError: Caught it in worker 0: ValueError: no x"),
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
    (-9, "signal", "train.py was killed by SIGKILL"),
    (-11, "signal", "train.py was killed by SIGSEGV"),
    (7, "exit", "train.py ended with exit code 7: train.py: error: --lr is required"),
    ids=repr,
)
def test_what_the_script_raised_or_the_code_with_which_it_ended(error, kind, message, log):
    told = None if isinstance(error, int) else describe(error, "its traceback")
    found = error_of(told, 1 if told else error, SCRIPT, log)
    assert found.kind == kind
    assert found.message.startswith(message or "") and "\n" not in found.message
    assert told is None or found.traceback == "its traceback"


@cases(
    "error, kind",
    (ImportError("No module named pack"), "usage"),
    (ImportError("Error while finding module specification for 'pack.train'"), "usage"),
    (ImportError("No module named transformers"), "exception"),
    (ModuleNotFoundError("No module named 'pack.models'"), "exception"),
)
def test_a_module_that_does_not_exist(error, kind, log):
    module = ScriptTarget(name="pack", program="pack.train", module=True)
    found = error_of(describe(error, None), 1, module, log)
    assert found.kind == kind
    assert found.message.startswith("There is no module pack.train") == (kind == "usage")
    assert error_of(describe(error, None), 1, SCRIPT, log).kind == "exception"


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


def test_what_other_launchers_have_said_is_left_out(monkeypatch):
    others = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
    for name in (*others, "SLURM_JOB_ID", "TORCHELASTIC_ERROR_FILE"):
        monkeypatch.setenv(name, "7")
    addresses = {"host": "10.0.0.1", "master": 1234, "run_dir": "/tmp/r", "key": "k"}
    place, identity = Place(host="a", local_rank=0, clock="x"), {"rank": 0, "local_rank": 0}
    found = supervise.environment_for(make_script_cell(), identity, addresses, [place])
    assert not {*others, "TORCHELASTIC_ERROR_FILE"} & found.keys()
    assert found["SLURM_JOB_ID"] == "7"


def test_where_a_stranger_says_that_ranks_are_is_not_believed():
    store = dist.HashStore()
    store.set("addresses", '{"run_dir": "/home"}')
    with pytest.raises(Forged, match="addresses"):
        sent_by_rank_0(SealedStore(store, "key"), None)
    SealedStore(store, "key").set("place0", "{}")
    store.set("addresses", store.get("place0"))  # signed, under another name
    with pytest.raises(Forged, match="addresses"):
        sent_by_rank_0(SealedStore(store, "key"), None)


@pytest.mark.slow
@cases(
    "then, to_the_end, expected",
    ("exit 0", False, (0, False)),
    ("exit 7", False, (7, False)),
    ("exec sleep 60", False, (-15, True)),
    ("trap '' TERM\nexec sleep 60", False, (-9, True)),
    ("exec sleep 0.6", True, (0, False)),
)
def test_who_does_not_end_is_killed(tmp_path, monkeypatch, capsys, then, to_the_end, expected):
    """A stand-in for the script stores its measurement, and goes on like this."""
    raw_file, python = tmp_path / "attach0.json", tmp_path / "python"
    python.write_text(f"#!/bin/sh\ntouch {raw_file}\n{then}\n")
    python.chmod(0o755)
    cell = make_script_cell(python=str(python), to_the_end=to_the_end)
    for name, limit_s in (("END_GRACE_S", 0.2), ("GRACE_S", 0.2), ("POLL_S", 0.05)):
        monkeypatch.setattr(supervise, name, limit_s)
    monkeypatch.setattr(supervise, "_pass_on_signals", lambda *_: None)
    addresses = {"host": "127.0.0.1", "master": 1, "run_dir": str(tmp_path / "run_dir"), "key": ""}
    given = (LaunchPaths(tmp_path), {"rank": 0, "local_rank": 0}, addresses, {}, raw_file)
    assert supervise.run_process({}, cell, *given) == expected
    assert ("did not end after its measurement; killed" in capsys.readouterr().out) is expected[1]
