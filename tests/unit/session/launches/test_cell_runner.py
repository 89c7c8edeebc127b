"""Cells that are launched alone, rounds that are asked for, and jobs that start again."""

import errno
import itertools
import os
from collections import namedtuple

import pytest

from scalebench.errors import UsageError
from scalebench.launch.base import Launched
from scalebench.records.measured.fault_events import Event
from scalebench.records.paths import RunPaths
from scalebench.records.run import Failure
from scalebench.session.launches import cell_runner
from scalebench.session.launches.cell_runner import CellRunner, ProgressListener
from scalebench.session.launches.precision import why_separate
from scalebench.session.launches.sharing import only_whole_launches
from scalebench.session.recovery import directory
from scalebench.session.recovery.timeline import NoTimeline, timeline_of
from scalebench.session.storing.finish import RunStore
from scalebench.spec.race import Race
from scalebench.spec.recovery import PHASES, FaultPlan, Recovery
from scalebench.spec.virtual_hosts import VirtualHosts
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


Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def cells():
    saving = make_cell("ddp", 2).model_copy(update={"purpose": "save", "recovery": Recovery()})
    return [make_cell("ddp", 2), saving]


def test_a_directory_that_is_not_there(cells, tmp_path):
    with pytest.raises(UsageError, match="there is no such directory"):
        directory.with_directory(cells, tmp_path / "missing", tmp_path, "x")


def refusing(number):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    return refuse


@cases(
    "number, why",
    (errno.EACCES, "Permission denied"),
    (errno.EROFS, "Read-only file system"),
    (errno.ENOSPC, "No space left on device"),
)
def test_a_directory_that_cannot_be_written(cells, tmp_path, monkeypatch, number, why):
    monkeypatch.setattr(directory.tempfile, "NamedTemporaryFile", refusing(number))
    with pytest.raises(UsageError, match=f"cannot go into .*: {why}. Give a directory that you"):
        directory.with_directory(cells, tmp_path, tmp_path, "x")


def test_a_directory_that_is_too_small(cells, tmp_path, monkeypatch):
    monkeypatch.setattr(directory.shutil, "disk_usage", lambda _: Usage(10, 9, 1000))
    needed = 3 * 3 * 12 * cells[1].workload.num_parameters
    assert directory.needed_bytes(cells) == needed
    with pytest.raises(UsageError, match=r"has 1\.00 kB free, and they need about"):
        directory.with_directory(cells, tmp_path, tmp_path, "x")


MS = 1_000_000
PLAN = FaultPlan(kind="kill", rank=1, at_step=6)
OUTSIDE = (100 * MS, 110 * MS, 160 * MS)
BEFORE = [
    [Event("step", n, n * 10 * MS) for n in range(1, 7)],
    [Event("step", n, n * 10 * MS) for n in range(1, 6)],
]


def continued(start=200, connected=20, built=40, load=50, step=10, saved=4, steps=3, data=5):
    parts = [start, connected, built, load - data, data, *[step] * steps]
    times = list(itertools.accumulate(parts))
    names = [("started", 77), ("connected", 0), ("built", 0), ("state", 0), ("loaded", saved)]
    names += [("step", saved + 1 + n) for n in range(steps)]
    return [Event(name, n, t * MS) for (name, n), t in zip(names, times, strict=True)]


def phases(*after, outside=OUTSIDE):
    return timeline_of(PLAN, "scalebench", outside, BEFORE, after or [continued(), continued()])


@cases(
    "argument, phase",
    ("start", "start"),
    ("connected", "rendezvous"),
    ("built", "build"),
    ("load", "load"),
)
def test_a_delay_is_found_in_its_phase_and_nowhere_else(argument, phase):
    usual = phases().phases_s
    late_by = {"start": 200, "connected": 20, "built": 40, "load": 50}[argument] + 300
    slow = phases(continued(), continued(**{argument: late_by})).phases_s
    more = {name: slow[name] - usual[name] for name in PHASES}
    assert more.pop(phase) == pytest.approx(0.3)
    assert all(abs(rest) < 1e-9 for rest in more.values())


def test_a_rank_that_does_not_get_as_far_is_said():
    with pytest.raises(NoTimeline, match="did not come to 'step 7'"):
        phases(continued(), continued(steps=2))
