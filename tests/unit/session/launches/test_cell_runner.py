import errno
import itertools
import os
from types import SimpleNamespace

import pytest

from scalebench.errors import UsageError
from scalebench.launch.base import Launched
from scalebench.records.measured.recovery import Event
from scalebench.records.paths import RunPaths
from scalebench.records.run import Failure
from scalebench.session import cell_runner
from scalebench.session.cell_runner import CellRunner, ProgressListener, only_whole_launches
from scalebench.session.precision import why_separate
from scalebench.session.recovery import directory
from scalebench.session.recovery.directory import NoTimeline, timeline_of
from scalebench.session.storing.finish import RunStore
from scalebench.spec.recovery import PHASES, FaultPlan, Race, Recovery
from scalebench.spec.world import VirtualHosts
from tests.builders.runs import make_cell, make_info, make_record, make_result, make_script_cell
from tests.examples import cases


@cases("kind, trains_at", ("ended", 2), ("ended", 0), ("usage", 2))
def test_a_script_that_ended_at_one_size_is_tried_at_others(tmp_path, monkeypatch, kind, trains_at):
    cells = [make_script_cell(n, repeat) for repeat in (0, 1) for n in (1, 2)]
    launched = []

    class Launcher:
        shares = False

        def launch(self, cell, logs):
            launched.append((cell.world_size, cell.repeat))
            if cell.world_size == trains_at:
                records = [make_record(rank) for rank in range(cell.world_size)]
                return Launched(records, None, 0.1, 6.0)
            failure = Failure(rank=0, kind=kind, message="It ended by itself")
            return Launched([], failure, None, 6.0)

    for name in ("calibrate_run", "calibrate_scripts", "rehearse_steps"):
        monkeypatch.setattr(cell_runner, name, lambda *_: True)
    (tmp_path / "r").mkdir()
    store = RunStore.create(RunPaths(tmp_path / "r"), make_info(cells), None, None)
    one = CellRunner(Launcher(), store, ProgressListener())
    if kind == "ended" and trains_at:
        assert one.run_missing() == "complete"
        assert launched == [(1, 0), (2, 0), (2, 1)]
        status = [(r.cell.world_size, r.status) for r in store.run.results.values()]
        assert status == [(1, "failed"), (2, "ok"), (1, "skipped"), (2, "ok")]
    else:
        with pytest.raises(UsageError, match="It ended by itself"):
            one.run_missing()
        assert launched == ([(1, 0), (2, 0)] if kind == "ended" else [(1, 0)])


def test_a_shared_launch_of_which_a_result_is_missing_is_done_again_as_a_whole():
    together = [[make_cell("plain", 1, r), make_cell("ddp", 2, r)] for r in range(2)]
    results = {
        cell.id: make_result(cell, shared_with=[one.id for one in cells])
        for cells in together
        for cell in cells
    }
    alone = make_result(make_cell("plain", 1, 2))
    results[alone.cell.id] = alone
    assert only_whole_launches(results) == results
    del results["ddp.ddp.n2.r1"]
    kept = only_whole_launches(results)
    assert set(kept) == {"ddp.plain.n1.r0", "ddp.ddp.n2.r0", "ddp.plain.n1.r2"}


ROWS = [make_cell("plain", 1), make_cell("ddp", 1), make_cell("ddp", 2)]


@cases(
    "cells, says",
    (ROWS, None),
    ([make_cell("ddp", 2, purpose="save"), *ROWS], "checkpoints"),
    ([make_cell("ddp", 2, purpose="fail"), *ROWS], "failures"),
    ([], "only collectives"),
    ([make_cell("ddp", 2, race=Race(samples=64, evaluate_every=32))], "another seed"),
)
def test_why_a_run_makes_no_further_round(cells, says):
    info = make_info(cells)
    found = why_separate(info)
    assert found is None if says is None else says in str(found)
    hosts = VirtualHosts(link_bit_per_s=(100_000_000,))
    spec = info.spec.model_copy(update={"virtual_hosts": hosts})
    assert "virtual hosts" in str(why_separate(info.model_copy(update={"spec": spec})))


@cases(
    "number, said",
    (None, "there is no such directory"),
    (errno.EACCES, "cannot go into .*: Permission denied. Give a directory that you"),
    (errno.EROFS, "cannot go into .*: Read-only file system. Give a directory that you"),
    (errno.ENOSPC, "cannot go into .*: No space left on device. Give a directory that you"),
    (0, r"has 1\.00 kB free, and they need about"),
)
def test_a_directory_that_cannot_be_saved_to(tmp_path, monkeypatch, number, said):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    cells = [make_cell("ddp", 2), make_cell("ddp", 2, purpose="save", recovery=Recovery())]
    assert directory.needed_bytes(cells) == 3 * 3 * 12 * cells[1].workload.num_parameters
    if number == 0:
        monkeypatch.setattr(directory.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    elif number:
        monkeypatch.setattr(directory.tempfile, "NamedTemporaryFile", refuse)
    place = tmp_path / "missing" if number is None else tmp_path
    with pytest.raises(UsageError, match=said):
        directory.with_directory(cells, place, tmp_path, "x")


MS = 1_000_000
USUAL = {"start": 200, "connected": 20, "built": 40, "load": 50}
PHASE_OF = {"start": "start", "connected": "rendezvous", "built": "build", "load": "load"}


def continued(steps=3, **late):
    """The events of a rank that was started again; each phase in ms."""
    start, connected, built, load = (USUAL | late).values()
    times = itertools.accumulate([start, connected, built, load - 5, 5, *[10] * steps])
    names = [("started", 77), ("connected", 0), ("built", 0), ("state", 0), ("loaded", 4)]
    names += [("step", 5 + n) for n in range(steps)]
    return [Event(name, n, t * MS) for (name, n), t in zip(names, times, strict=True)]


def phases(second):
    """Of a job whose rank 1 was killed at its sixth step; the second rank goes on like this."""
    plan = FaultPlan(kind="kill", rank=1, at_step=6)
    before = [[Event("step", n, n * 10 * MS) for n in range(1, last)] for last in (7, 6)]
    outside = (100 * MS, 110 * MS, 160 * MS)
    return timeline_of(plan, "scalebench", outside, before, [continued(), second]).phases_s


@cases("late", *PHASE_OF)
def test_a_delay_is_found_in_its_phase_and_nowhere_else(late):
    usual, slow = phases(continued()), phases(continued(**{late: USUAL[late] + 300}))
    more = {name: slow[name] - usual[name] for name in PHASES}
    assert more.pop(PHASE_OF[late]) == pytest.approx(0.3)
    assert all(abs(rest) < 1e-9 for rest in more.values())


def test_a_rank_that_does_not_get_as_far_is_said():
    with pytest.raises(NoTimeline, match="did not come to 'step 7'"):
        phases(continued(steps=2))
