"""A result whose storing was cut short is not lost."""

import errno

import pytest

from scalebench.analysis.run import load_run
from scalebench.errors import UsageError
from scalebench.records.files import write_checked
from scalebench.session.storing import store as module
from scalebench.session.storing.anonymise import Cleaner
from scalebench.session.storing.finish import results_not_saved
from scalebench.session.storing.store import RunStore
from tests.builders.runs import make_stored_run


@pytest.fixture
def resumed(tmp_path):
    """A run whose first cell is measured again: its file is there, from the launch before."""
    stored = load_run(make_stored_run(tmp_path / "run").root)
    first = sorted(stored.results)[0]
    again = stored.results.pop(first).model_copy(update={"started": "2031-01-01T00:00:00+00:00"})
    return RunStore(stored, Cleaner()), again


def fails_once(monkeypatch, error):
    """The next file that the store writes is not written."""
    write = module.write_checked

    def failing(*arguments, **changes):
        monkeypatch.setattr(module, "write_checked", write)
        raise error

    monkeypatch.setattr(module, "write_checked", failing)


def test_what_a_signal_cut_short_is_stored_afterwards(resumed, monkeypatch):
    store, again = resumed
    fails_once(monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        store.keep_result(again)
    store.keep_unsaved()
    assert load_run(store.run.paths.root).results[again.cell.id].started == again.started
    assert not store.run.unsaved


def test_what_a_full_disk_does_not_take_is_handed_out_also_where_an_older_file_is(
    resumed, monkeypatch
):
    store, again = resumed
    full = OSError(errno.ENOSPC, "No space left on device")
    fails_once(monkeypatch, full)
    with pytest.raises(OSError) as seen:
        store.keep_result(again)
    assert [r.started for r in results_not_saved(store.run, seen.value).rest.results] == [
        again.started
    ]


def test_of_a_shared_launch_no_result_is_lost_where_the_disk_is_full(resumed, monkeypatch):
    store, again = resumed
    other = again.model_copy(update={"cell": again.cell.model_copy(update={"repeat": 1})})
    fails_once(monkeypatch, OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(OSError, match="No space") as full:
        store.keep_results([again, other])
    rest = results_not_saved(store.run, full.value).rest
    assert {result.cell.id for result in rest.results} == {again.cell.id, other.cell.id}


def test_a_complete_run_that_lost_results_says_which(resumed):
    store, again = resumed
    store.keep_result(again)
    info = store.run.info.model_copy(update={"status": "complete"})
    write_checked(store.run.paths.run_json, info)
    whole = load_run(store.run.paths.root)
    assert whole.damaged == {} and len(whole.results) == len(info.plan) > 1
    lost = store.run.paths.cell(again.cell.id)
    lost.unlink()
    told = f"it is missing from {store.run.paths.cells}."
    assert load_run(store.run.paths.root).damaged == {lost.name: told}
    for cell in store.run.paths.cells.iterdir():
        cell.unlink()
    with pytest.raises(UsageError, match=rf"has none of the {len(info.plan)} results of this"):
        load_run(store.run.paths.root)
    write_checked(store.run.paths.run_json, info.model_copy(update={"status": "interrupted"}))
    assert load_run(store.run.paths.root).damaged == {}
