"""Which cells share a launch, and when they have to be launched by themselves."""

import pytest

from scalebench.session.launches import sharing
from scalebench.session.launches.sharing import (
    can_share,
    cells_to_share,
    only_whole_launches,
    too_much_memory,
)
from scalebench.spec import Loader, SharedLaunch
from tests.builders.runs import make_cell, make_failed, make_info, make_inspection, make_result

SPEC = make_info([]).spec.model_copy(update={"shared": True})


def test_measured_cells_share_where_the_launcher_and_the_run_do() -> None:
    cell = make_cell()
    assert can_share(cell, SPEC, launcher_shares=True)
    assert not can_share(cell, SPEC, launcher_shares=False)
    assert not can_share(cell, SPEC.model_copy(update={"shared": False}), launcher_shares=True)
    assert not can_share(make_cell(purpose="inspect"), SPEC, launcher_shares=True)
    assert not can_share(make_cell(loader=Loader(num_workers=1)), SPEC, launcher_shares=True)


def test_cells_of_one_suite_and_round_go_together() -> None:
    cells = [make_cell("plain", 1), make_cell(), make_cell(repeat=1), make_cell(suite="fsdp")]
    assert cells_to_share(cells[0], cells) == cells[:2]


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


def test_a_shared_launch_numbers_its_processes_cell_by_cell() -> None:
    cells = [make_cell("plain", 1, limit_s=5.0), make_cell("ddp", 2, limit_s=7.0)]
    shared = SharedLaunch.of(cells)
    assert shared.places() == [(0, 0), (1, 0), (1, 1)]
    assert (shared.num_processes, shared.limit_s) == (3, 12.0)


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


def test_a_failed_result_does_not_undo_those_that_it_took_turns_with() -> None:
    cells = [make_cell("plain", 1), make_cell("ddp", 2)]
    ids = [cell.id for cell in cells]
    failed = make_failed(cells[1]).model_copy(update={"shared_with": ids})
    results = {ids[0]: make_result(cells[0], shared_with=ids), ids[1]: failed}
    assert only_whole_launches(results) == results


def test_independent_ranks_need_the_memory_of_their_baseline_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = make_cell("plain", 1)
    crowd = make_cell("plain", 2, purpose="independent", rank_batch=16)
    results = {r.cell.id: r for r in [make_inspection(base, allocated_bytes=10**9)]}
    needed = 2 * (10**9 + sharing.PROCESS_BYTES) / sharing.LARGEST_SHARE_OF_MEMORY
    monkeypatch.setattr(sharing, "_available_bytes", lambda: int(needed * 0.99))
    assert too_much_memory([crowd], results) is not None
    monkeypatch.setattr(sharing, "_available_bytes", lambda: int(needed * 1.01))
    assert too_much_memory([crowd], results) is None
