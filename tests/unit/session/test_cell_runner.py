"""Cells that did not come to their end together are launched alone, within the budget."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from scalebench.analysis.run import StoredRun, load_run
from scalebench.costmodel.links.profile import LinkProfile
from scalebench.launch.base import Launched
from scalebench.launch.sharing import SharingFailed
from scalebench.records.paths import RunPaths
from scalebench.records.run import RunInfo
from scalebench.session import cell_runner
from scalebench.session.cell_runner import CellRunner
from scalebench.session.progress import Silent
from scalebench.session.store import RunStore
from scalebench.spec import Cell
from tests.builders.runs import make_cell, make_info, make_record, make_result

CELLS = [make_cell("plain", 1), make_cell("ddp", 1), make_cell("ddp", 2)]


class Clock:
    """A clock on which every launch takes six seconds."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


class NeverTogether:
    """A launcher in which cells that take turns fail."""

    shares = True

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def launch(self, cell: Cell, logs: Path) -> Launched:
        self.clock.now += 6
        records = [make_record(rank) for rank in range(cell.world_size)]
        return Launched(records, None, 0.1, 6.0)

    def launch_shared(self, shared: object, logs: object) -> list[Launched]:
        self.clock.now += 6
        raise SharingFailed("a rank left no record")


def runner(root: Path, monkeypatch: pytest.MonkeyPatch, **spec: object) -> CellRunner:
    clock = Clock()
    monkeypatch.setattr(cell_runner, "time", SimpleNamespace(monotonic=clock.monotonic))
    monkeypatch.setattr(cell_runner, "calibrate_run", lambda *_: None)
    wanted = make_info(CELLS).spec.model_copy(update={"shared": True, **spec})
    info: RunInfo = make_info(CELLS, spec=wanted)
    root.mkdir()
    store = RunStore.create(RunPaths(root), info, None, None)
    return CellRunner(NeverTogether(clock), store, Silent())  # type: ignore[arg-type]


def test_cells_that_fail_together_and_not_alone_are_kept_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = runner(tmp_path / "r", monkeypatch)
    assert one.run_missing() == "complete"
    assert {r.status for r in load_run(tmp_path / "r").results.values()} == {"ok"}
    assert "not by turns: a rank left no record" in one.store.run.info.notices[-1]


def test_the_rest_of_a_round_of_an_earlier_session_is_launched_row_by_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = runner(tmp_path / "r", monkeypatch)
    earlier = [cell.id for cell in CELLS]
    one.store.keep_result(make_result(CELLS[0], shared_with=earlier))
    notices = one.store.run.info.notices
    assert one.run_missing() == "complete"
    shared = {r.cell.id: r.shared_with for r in one.store.run.results.values()}
    assert shared == {CELLS[0].id: earlier, CELLS[1].id: [], CELLS[2].id: []}
    assert one.store.run.info.notices == notices  # nobody tried to launch them together


def test_the_search_for_the_one_to_blame_ends_with_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = runner(tmp_path / "r", monkeypatch, budget_s=10.0)
    assert one.run_missing() == "over budget"
    assert list(one.store.run.results) == [CELLS[0].id]


def test_what_a_calibration_left_out_is_a_notice_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = runner(tmp_path / "run", monkeypatch)
    profile = LinkProfile(
        created="now", version="0", device="cpu", backend="gloo", points=(), fits=(),
        cut_short=("timed all_reduce up to 2 MB of 9 MB",),
    )  # fmt: skip

    def calibrated(_: object, stored: StoredRun, __: object) -> None:
        stored.link = profile

    monkeypatch.setattr(cell_runner, "calibrate_run", calibrated)
    running.run_missing()
    assert "timed all_reduce up to 2 MB of 9 MB" in running.store.run.info.notices
