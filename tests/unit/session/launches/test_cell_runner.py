"""Cells that did not come to their end together are launched alone, within the budget."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from scalebench.analysis.run import StoredRun, load_run
from scalebench.costmodel.links.profile import LinkProfile
from scalebench.errors import UsageError
from scalebench.launch.base import Launched, SharingFailed
from scalebench.records.paths import RunPaths
from scalebench.records.run import Failure, RunInfo
from scalebench.session.launches import cell_runner, sharing
from scalebench.session.launches.cell_runner import CellRunner, ProgressListener
from scalebench.session.launches.sharing import (
    can_share,
    only_whole_launches,
    too_much_memory,
)
from scalebench.session.storing.store import RunStore
from scalebench.spec import Cell, Loader, Script
from scalebench.spec.script import ScriptTarget
from tests.builders.runs import make_cell, make_info, make_inspection, make_record, make_result

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
    return CellRunner(NeverTogether(clock), store, ProgressListener())  # type: ignore[arg-type]


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


@pytest.mark.parametrize(("kind", "trains_at"), [("ended", 2), ("ended", 0), ("usage", 2)])
def test_a_script_that_ended_at_one_size_is_launched_at_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, trains_at: int
) -> None:
    target = ScriptTarget(name="train", program="train.py")
    cells = [
        make_cell("script", n, strategy=Script(), workload=target).model_copy(
            update={"repeat": repeat}
        )
        for repeat in (0, 1)
        for n in (1, 2)
    ]
    launched = []

    class Launcher(NeverTogether):
        shares = False

        def launch(self, cell: Cell, logs: Path) -> Launched:
            launched.append((cell.world_size, cell.repeat))
            if cell.world_size == trains_at:
                return super().launch(cell, logs)
            failure = Failure(rank=0, kind=kind, message="It ended by itself")  # type: ignore[arg-type]
            return Launched([], failure, None, 6.0)

    for name in ("calibrate_run", "calibrate_scripts", "rehearse_steps"):
        monkeypatch.setattr(cell_runner, name, lambda *_: True)
    (tmp_path / "r").mkdir()
    store = RunStore.create(RunPaths(tmp_path / "r"), make_info(cells), None, None)
    one = CellRunner(Launcher(Clock()), store, ProgressListener())  # type: ignore[arg-type]
    if kind == "ended" and trains_at:
        assert one.run_missing() == "complete"
        assert launched == [(1, 0), (2, 0), (2, 1)]
        status = [(r.cell.world_size, r.status) for r in store.run.results.values()]
        assert status == [(1, "failed"), (2, "ok"), (1, "skipped"), (2, "ok")]
    else:
        with pytest.raises(UsageError, match="It ended by itself"):
            one.run_missing()
        assert launched == ([(1, 0), (2, 0)] if kind == "ended" else [(1, 0)])


SPEC = make_info([]).spec.model_copy(update={"shared": True})


def test_measured_cells_share_where_the_launcher_and_the_run_do() -> None:
    cell = make_cell()
    assert can_share(cell, SPEC, launcher_shares=True)
    assert not can_share(cell, SPEC, launcher_shares=False)
    assert not can_share(cell, SPEC.model_copy(update={"shared": False}), launcher_shares=True)
    assert not can_share(make_cell(purpose="inspect"), SPEC, launcher_shares=True)
    assert not can_share(make_cell(loader=Loader(num_workers=1)), SPEC, launcher_shares=True)


def test_cells_that_need_more_than_the_free_memory_do_not_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cells = [make_cell("plain", 1), make_cell("ddp", 2)]
    inspected = [make_inspection(cell, allocated_bytes=10**9) for cell in cells]
    results = {result.cell.id: result for result in inspected}
    needed = 3 * (10**9 + sharing.PROCESS_BYTES) / sharing.LARGEST_SHARE_OF_MEMORY
    monkeypatch.setattr(sharing, "_available_bytes", lambda: int(needed * 1.01))
    assert too_much_memory(cells, results) is None
    monkeypatch.setattr(sharing, "_available_bytes", lambda: int(needed * 0.99))
    assert "together they need about 3." in (too_much_memory(cells, results) or "")
    monkeypatch.setattr(sharing, "_available_bytes", lambda: None)
    assert too_much_memory(cells, results) is None


def test_a_shared_launch_of_which_a_result_is_missing_is_done_again_as_a_whole() -> None:
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
