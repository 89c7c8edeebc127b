"""Which cells share a launch, and when they have to be launched by themselves."""

import pytest

from scalebench.session.launches import sharing
from scalebench.session.launches.sharing import (
    can_share,
    only_whole_launches,
    too_much_memory,
)
from scalebench.spec import Loader
from tests.builders.runs import make_cell, make_info, make_inspection, make_result

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
