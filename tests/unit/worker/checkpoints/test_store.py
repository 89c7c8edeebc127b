import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from scalebench.worker.checkpoints.store import MANIFEST, CheckpointStore
from tests.examples import cases

NUM_KILLS = 100
FILES = ("a", "b", "deep/c")


def content(step, name):
    return f"{step} {name} ".encode() * 500


def write(store, step, again=""):
    folder = store.begin(step)
    for name in FILES:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content(step, again + name))


def save(store, step, again=""):
    write(store, step, again)
    return store.complete(step)


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "checkpoints")


def test_the_same_step_may_be_saved_again_and_the_last_one_counts(store):
    for again in ("first ", "second ", "third "):
        newest = save(store, 4, again)
    found = store.newest()
    assert (found.checkpoint, found.damaged) == (newest, {})
    assert (newest.folder / "b").read_bytes() == content(4, "third b")
    assert list(store.root.iterdir()) == [newest.folder], "the older ones are removed"


@cases("where, what, kept", (Path, "rename", "first "), (shutil, "rmtree", "second "))
def test_a_kill_while_a_step_is_saved_again_leaves_a_whole_one(
    store, monkeypatch, where, what, kept
):
    """The process ends just before the new one has its name, or just before the older one goes."""
    save(store, 4, "first ")
    write(store, 4, "second ")
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(where, what, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        try:
            store.complete(4)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, "it has to end at that very point"
    found = store.newest()
    assert found.checkpoint is not None and found.damaged == {}
    assert (found.checkpoint.folder / "b").read_bytes() == content(4, f"{kept}b")
    store.keep_newest()
    assert list(store.root.iterdir()) == [found.checkpoint.folder]


@cases(
    "damage, why",
    (lambda f: (f / "b").unlink(), "b is missing"),
    (lambda f: (f / "b").write_bytes(b"x"), "b has 1 bytes, and 2000 were written"),
    (lambda f: (f / "b").write_bytes(b"x" * 2000), "b does not have the checksum"),
    (lambda f: (f / MANIFEST).unlink(), "its manifest cannot be read: FileNotFoundError"),
    (lambda f: (f / MANIFEST).write_text("{"), "its manifest cannot be read: JSONDecodeError"),
    (lambda f: (f / MANIFEST).write_text("[1]"), "its manifest cannot be read: TypeError"),
)
def test_a_damaged_one_is_passed_over_and_named(store, damage, why):
    save(store, 4)
    damage(save(store, 5).folder)
    found = store.newest()
    assert found.checkpoint is not None and found.checkpoint.step == 4
    assert found.damaged["step-00000005"].startswith(why)


def _save_for_ever(store, first):
    step = first
    while True:
        save(store, step)
        save(store, step)  # as a job does that continues from an older one
        store.keep_newest()
        step += 1


@pytest.mark.slow
def test_after_kills_at_random_moments_the_newest_complete_one_is_found(store):
    """Each child saves one checkpoint after the other until it is killed."""
    chance = random.Random(26)
    step, in_the_middle = 0, 0
    save(store, step)
    for _ in range(NUM_KILLS):
        child = os.fork()
        if child == 0:
            try:
                _save_for_ever(store, step + 1)
            finally:
                os._exit(1)
        time.sleep(chance.uniform(0.001, 0.01))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        names = {path.name for path in store.root.iterdir()}
        in_the_middle += any(name.endswith(".partial") for name in names)
        found = store.newest()
        assert found.checkpoint is not None, names
        assert found.damaged == {}, names
        assert found.checkpoint.step >= step, "a kill has taken back what was complete"
        step = found.checkpoint.step
        for name in FILES:
            assert (found.checkpoint.folder / name).read_bytes() == content(step, name)
    assert in_the_middle > NUM_KILLS / 5, "the kills have to hit saves"
