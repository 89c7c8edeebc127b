import gzip
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import zlib
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from scalebench.analysis.run import load_run
from scalebench.analysis.summarise import summarise
from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.records.files import read_text, write_atomic
from scalebench.records.folder import MARK, PREFIX, Scratch, remove_abandoned, working_on
from scalebench.records.paths import RunPaths
from tests.builders.runs import make_cell, make_result, make_small_run, make_stored_run
from tests.examples import cases

PICKED = "ddp.ddp.n2.r1"


class PowerCut(BaseException):
    """Nothing may catch this and go on."""


@contextmanager
def files_of_at_most(num_bytes):
    """A disk that is full after ``num_bytes`` of any file: writing more raises OSError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@cases("function", "fsync", "replace")
@cases("before", None, "old")
def test_a_crash_leaves_the_old_file_or_none(tmp_path, monkeypatch, function, before):
    target = tmp_path / "file"
    if before is not None:
        target.write_text(before)

    def crash(*_):
        raise PowerCut

    monkeypatch.setattr(os, function, crash)
    with pytest.raises(PowerCut):
        write_atomic(target, "new " * 100_000)
    assert (target.read_text() if target.exists() else None) == before
    assert os.listdir(tmp_path) == ([] if before is None else ["file"])


def test_a_disk_that_fills_up_leaves_the_old_file_and_no_rubbish(tmp_path):
    target = tmp_path / "file"
    target.write_text("old")
    with files_of_at_most(10_000), pytest.raises((OSError, EnvironmentUnfit)):
        write_atomic(target, "new " * 100_000)
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def change(**fields):
    """Change top-level fields of a stored cell."""
    return lambda content: json.dumps({**content, **fields})


def change_rank(**fields):
    """Change fields of a stored cell's rank 0."""

    def changed(content):
        content["ranks"][0] |= fields
        return json.dumps(content)

    return changed


def change_ranks(**fields):
    """Change fields of all ranks of a stored cell."""
    return lambda c: json.dumps({**c, "ranks": [{**rank, **fields} for rank in c["ranks"]]})


def raw(text):
    return lambda _: text


HUGE = 10**400
STEPS = [9.0, 5.0, 0.1, 0.1, 0.1, 0.1]

HOSTILE = {
    "empty": raw(""),
    "truncated": lambda content: json.dumps(content)[:-40],
    "newer": change(format="scalebench.cell/2"),
    "unknown status": change(status="splendid"),
    "of another cell": lambda _: make_result(make_cell("ddp", 2, 2)).model_dump_json(),
    "deeply nested": raw('{"format": "scalebench.cell/1", "x": ' + "[" * 100_000),
    "step NaN": change_rank(step_s=[float("nan")] * 6),
    "number of 5000 digits": lambda content: json.dumps(content).replace("421000", "9" * 5000),
    "time NaN": change(launch_s=float("nan")),
    "loss NaN": change_rank(loss=[float("nan")] * 6),
    "negative block": change_rank(blocks=[{"phase": "clean", "first": -3, "count": 3}]),
    # What contradicts itself
    "ok without ranks": change(ranks=[]),
    "ok with a rank missing": lambda c: json.dumps({**c, "ranks": c["ranks"][:1]}),
    "ok with a rank twice": lambda c: json.dumps({**c, "ranks": c["ranks"][:1] * 2}),
    "ok without steps": change_ranks(step_s=[], blocks=[]),
    "ok without clean steps": change_ranks(blocks=[{"phase": "warmup", "first": 0, "count": 6}]),
    "ranks of unequal length": change_rank(step_s=STEPS[:-1]),
    "block beyond the steps": change_ranks(blocks=[{"phase": "clean", "first": 0, "count": 60}]),
    "steps of no time": change_ranks(step_s=[0.0] * 6),
    "steps of negative time": change_ranks(step_s=[-step for step in STEPS]),
    "tokens of 400 digits": change_ranks(tokens_per_sample=HUGE),
    "ok with a null loss": change_ranks(loss=[None] * 6),
    "losses of unequal length": change_rank(loss=[5.0]),
    "another global batch": lambda c: json.dumps(
        {**c, "cell": {**c["cell"], "global_batch": 3200, "rank_batch": 1600}}
    ),
}


def spoilt_run(tmp_path, spoil, pack=gzip.compress):
    paths = make_stored_run(tmp_path / "run")
    file = paths.cell(PICKED)
    text = spoil(json.loads(read_text(file)))
    file.write_bytes(pack(text.encode("utf-8", errors="surrogateescape")))
    return paths


def require_set_aside(paths, file):
    """What is wrong with a cell's file is said, and the rest of the run is used."""
    run = load_run(paths.root)
    assert list(run.damaged) == [file]
    assert file in run.damaged[file]
    assert len(run.damaged[file]) < 1000
    assert PICKED not in run.results
    assert len(run.results) == len(make_small_run()) - 1
    summary = summarise(run)
    assert any(f"{file} was set aside" in notice for notice in summary.notices)
    assert summary.rows[-1].efficiency.n == 2  # two rounds are left of three
    return run.damaged[file]


@cases("spoil", *HOSTILE.values(), ids=HOSTILE)
def test_a_cell_that_cannot_be_used_is_set_aside_by_name(tmp_path, spoil):
    require_set_aside(spoilt_run(tmp_path, spoil), f"{PICKED}.json.gz")


def inflated(content):
    """A gigabyte of blanks behind a cell that takes few bytes on disk."""
    packer = zlib.compressobj(1, wbits=zlib.MAX_WBITS | 16)
    parts = (packer.compress(x) + packer.flush(zlib.Z_FULL_FLUSH) for x in (content, b" " * 2**20))
    return next(parts) + next(parts) * 2**10


PACKED = {
    "cut off": (lambda content: gzip.compress(content)[:-100], "does not end where"),
    "without its end": (lambda content: gzip.compress(content)[:-8], "does not end where"),
    "flipped": (lambda content: flipped(gzip.compress(content)), "is damaged"),
    "not packed": (lambda content: content, "incorrect header"),
    "nothing": (lambda content: b"", "is damaged"),
    "twice": (lambda content: 2 * gzip.compress(content), "does not end where"),
    "decompression bomb": (inflated, "too large"),
}


def flipped(packed):
    return packed[:200] + bytes([packed[200] ^ 16]) + packed[201:]


@cases("pack, why", *PACKED.values(), ids=PACKED)
def test_a_cell_that_cannot_be_unpacked_is_set_aside_by_name(tmp_path, pack, why):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = require_set_aside(spoilt_run(tmp_path, json.dumps, pack), f"{PICKED}.json.gz")
    assert why in said
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 800_000  # KiB


def test_cells_of_older_versions_are_read_and_their_damage_is_named(tmp_path):
    whole = load_run(make_stored_run(tmp_path / "whole").root)
    paths = make_stored_run(tmp_path / "run")
    for name, file in paths.stored_cells().items():
        paths.old_cell(name).write_text(read_text(file))
        file.unlink()
    assert load_run(paths.root).results == whole.results
    old = paths.old_cell(PICKED)
    old.write_text(old.read_text()[:-40])
    require_set_aside(paths, old.name)


@cases(
    "text",
    *("", "{", "[]", '{"format": "scalebench.run/2"}', '{"format": "scalebench.run/1"}', "\udcff"),
)
def test_a_run_json_that_cannot_be_used_is_refused_by_name(tmp_path, text):
    paths = make_stored_run(tmp_path / "run")
    paths.run_json.write_bytes(text.encode("utf-8", errors="surrogateescape"))
    with pytest.raises(UsageError, match=r"run\.json"):
        load_run(paths.root)


@cases("world_size", 0, -1, "two", None, 1e999)
def test_a_plan_with_nonsense_in_it_is_refused(tmp_path, world_size):
    paths = make_stored_run(tmp_path / "run")
    content = json.loads(paths.run_json.read_text())
    content["plan"][0]["world_size"] = world_size
    paths.run_json.write_text(json.dumps(content))
    with pytest.raises(UsageError, match=r"run\.json is damaged: plan\.0\.world_size"):
        load_run(paths.root)


def begin(root, new=True):
    with working_on(root, new) as paths:
        return paths


def test_a_new_folder_is_made_with_its_parents_and_private(tmp_path):
    paths = begin(tmp_path / "a" / "b")
    assert paths.root == tmp_path / "a" / "b"
    assert stat.S_IMODE(paths.root.stat().st_mode) == 0o700
    assert os.listdir(paths.root) == [".lock"]
    begin(paths.root)  # one that ended before it began left its lock


def test_what_the_lock_points_at_is_not_touched(tmp_path):
    (tmp_path / "thesis").write_text("mine")
    (tmp_path / ".lock").symlink_to("thesis")
    with pytest.raises(EnvironmentUnfit, match="cannot be written"):
        begin(tmp_path, new=False)
    assert (tmp_path / "thesis").read_text() == "mine"


KILLED = """
import os, signal
from scalebench.records.folder import Scratch
scratch = Scratch()
(scratch.folder / "deep").mkdir()
(scratch.folder / "deep" / "file").touch()
print(scratch.folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
START_AND_CLEAN = """
import os, sys
from scalebench.records.folder import Scratch
processes, rounds = 24, 15
gate, opened = os.pipe()
for _ in range(processes):
    if os.fork() == 0:
        os.close(opened)
        os.read(gate, 1)  # until all are there
        for _ in range(rounds):
            with Scratch() as folder:
                (folder / "file").touch()
                os.sched_yield()
                (folder / "file").unlink()
        os._exit(0)
os.close(opened)
sys.exit(sum(os.wait()[1] != 0 for _ in range(processes)))
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A temporary directory for this test and the processes that it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def abandoned():
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return Path(done.stdout.strip())


def test_many_that_start_and_clean_at_once_lose_nothing(temporary):
    command = [sys.executable, "-c", START_AND_CLEAN]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(temporary.iterdir()) == []


def test_what_a_killed_process_left_goes_with_the_next_and_what_is_in_use_stays(temporary):
    left = abandoned()
    with Scratch() as first:
        assert not left.exists()
        forgotten = Scratch()
        with Scratch():
            assert first.is_dir() and forgotten.folder.is_dir()
        other = forgotten.folder
        del forgotten
        assert first.is_dir() and not other.exists()
    assert list(temporary.iterdir()) == []


def test_only_what_is_marked_and_holds_no_run_is_removed(temporary):
    inside = abandoned()  # first: it removes as well
    for name in (f"{PREFIX}run", "scalebench-ddp"):
        (temporary / name).mkdir()
        (temporary / name / ".lock").touch()
    (temporary / f"{PREFIX}run" / MARK).touch()
    (temporary / f"{PREFIX}run" / "run.json").touch()
    (temporary / f"{PREFIX}mine").mkdir()
    (temporary / f"{PREFIX}mine" / "thesis.tex").touch()
    (temporary / f"{PREFIX}file").touch()
    os.mkfifo(temporary / f"{PREFIX}fifo")
    outside = temporary / "outside"
    outside.mkdir()
    for name in (MARK, "keep"):
        (outside / name).touch()
    (temporary / f"{PREFIX}link").symlink_to(outside)
    (inside / "link").symlink_to(outside)
    before = set(temporary.rglob("*")) - {inside, *inside.rglob("*")}
    remove_abandoned()
    assert set(temporary.rglob("*")) == before


def test_no_room_for_a_temporary_folder_is_one_line(temporary, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "gone"))
    with pytest.raises(EnvironmentUnfit, match="set TMPDIR"):
        Scratch()


RUN = RunPaths(Path("/runs/one"))


@cases(
    "name",
    *("", ".", "..", "../x", "a/b", "/etc/passwd", "a/../b", "a..b", "..a", ".hidden", "-x"),
    *("a\\b", "a b", "a\0b", "a\nb", "a\n", "\na", "ä", "a:b", "a*", "~", "$HOME"),
)
@cases("where", RUN.cell, RUN.logs)
def test_a_name_that_could_lead_elsewhere_is_refused(where, name):
    with pytest.raises(ValueError, match="not a plain file name"):
        where(name)


NAMES = st.text("a0._-", min_size=1, max_size=4) | st.just("x" * 64)


@given(NAMES, NAMES)
def test_every_name_that_a_suite_may_use_can_be_stored(suite, case):
    try:
        cell_id = make_cell(suite=suite, case=case).id
    except ValidationError:
        return
    assert RUN.cell(cell_id).parent == RUN.cells
    assert len(RUN.cell(cell_id).name) <= 255
