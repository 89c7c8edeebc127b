"""Which rows get a further round, what it holds, and when no more are begun."""

import math
import time
from pathlib import Path

from scalebench.records.run import CellResult
from scalebench.session.launches.precision import add_rounds
from scalebench.session.storing.store import RunStore
from tests.builders.runs import make_cell, make_info, make_result, make_run

NOISE = (0.0, 1.0, -1.0)
TOGETHER = ["a", "b", "c", "d"]


def results(noisy: float, calm: float = 0.001, **changes: object) -> list[CellResult]:
    """Three rounds of plain, a calm row at N=1 and a noisy one at N=2, 2 s of wall clock a cell."""
    rows = (("plain", 1, 0.4, 0.0), ("ddp", 1, 0.5, calm), ("ddp", 2, 0.25, noisy))
    return [
        make_result(
            make_cell(case, size, repeat),
            step_s * math.exp(spread * NOISE[repeat]),
            wall_s=8.0,
            shared_with=TOGETHER,
            **changes,
        )
        for repeat in range(3)
        for case, size, step_s, spread in rows
    ]


def stored(root: Path, **wanted: float) -> RunStore:
    run = make_run(results(noisy=0.05))
    run.paths.__init__(root)  # type: ignore[misc]
    spec = run.info.spec.model_copy(update=wanted)
    run.info = make_info([r.cell for r in run.results.values()], spec=spec)
    root.mkdir()
    return RunStore(run, None)


def test_no_round_is_begun_that_would_end_after_the_budget(tmp_path: Path) -> None:
    store = stored(tmp_path / "r", precision=0.055, precision_budget_s=90.0)
    launched: list[str] = []
    began = time.monotonic() - 90.0 + 1.0  # two cells of 2 s do not fit into 1 s
    assert add_rounds(store, lambda: launched.append("round") or "complete", began) == "complete"
    assert launched == []
    reached = store.run.info.precision
    assert reached is not None and [row.case for row in reached.imprecise] == ["ddp"]
