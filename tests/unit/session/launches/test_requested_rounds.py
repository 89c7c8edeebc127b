"""Rounds that another process asks for: which rows they have, and when there are none."""

from pathlib import Path

import pytest

from scalebench.records.paths import RunPaths
from scalebench.records.run import CellResult
from scalebench.session.launches.requested_rounds import make_requested_rounds, why_separate
from scalebench.session.storing.store import RunStore
from scalebench.spec import Cell
from scalebench.spec.race import Race
from scalebench.spec.virtual_hosts import VirtualHosts
from tests.builders.runs import make_cell, make_failed, make_info, make_result

ROWS = [make_cell("plain", 1), make_cell("ddp", 1), make_cell("ddp", 2)]


class Launching:
    """Stands for the launches: each cell that has no result gets one."""

    def __init__(self, store: RunStore) -> None:
        self.store = store
        self.began = -1e9
        self.statuses = ["complete"]
        self.launched: list[list[str]] = []

    def run_missing(self) -> str:
        run = self.store.run
        missing = [cell for cell in run.info.plan if cell.id not in run.results]
        self.launched.append([cell.id for cell in missing])
        for cell in missing:
            run.results[cell.id] = make_result(cell, 0.1)
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]


class Asked:
    """Stands for the connection: asks for rounds, and notes what happened in which order."""

    def __init__(self, *rounds: list[str]) -> None:
        self.rounds = list(rounds)
        self.told: list[str | None] = []

    def report(self, separate: str | None = None) -> None:
        self.told.append(separate or "done")

    def wait(self) -> list[str] | None:
        self.told.append("wait")
        return self.rounds.pop(0) if self.rounds else None

    def let_go(self) -> None:
        self.told.append("let go")

    def claim(self, _: object) -> list[str]:
        self.told.append("claim")
        return ["GPU 7 shared with another scalebench"]


def made(
    root: Path, asked: Asked, results: list[CellResult], *statuses: str
) -> tuple[Launching, str]:
    root.mkdir()
    info = make_info([result.cell for result in results])
    store = RunStore.create(RunPaths(root), info, None, None)
    store.run.results.update({result.cell.id: result for result in results})
    launching = Launching(store)
    launching.statuses = list(statuses) or ["complete"]
    ended = make_requested_rounds(store, launching, asked, asked)  # type: ignore[arg-type]
    return launching, ended


def test_each_round_is_made_when_it_is_asked_for(tmp_path: Path) -> None:
    asked = Asked([], ["ddp.ddp.n2", "ddp.plain.n1"])
    launching, ended = made(tmp_path / "r", asked, [make_result(cell, 0.1) for cell in ROWS])
    assert ended == "complete"
    assert launching.launched == [
        [],
        ["ddp.plain.n1.r1", "ddp.ddp.n1.r1", "ddp.ddp.n2.r1"],
        ["ddp.plain.n1.r2", "ddp.ddp.n2.r2"],
    ]
    turn = ["let go", "done", "wait", "claim"]
    assert asked.told == [*turn, *turn, "let go", "done", "wait"]
    info = launching.store.run.info
    assert "GPU 7 shared with another scalebench" in info.notices
    assert not any(cell.steps.trace for cell in info.plan if cell.repeat)
    assert launching.began > 0  # a budget is for each round


def test_a_row_that_failed_is_not_launched_again(tmp_path: Path) -> None:
    alone = make_cell("plain", 1, purpose="independent", rank_batch=16)  # no row
    results = [make_result(ROWS[0], 0.1), make_failed(ROWS[1]), make_result(ROWS[2], 0.1)]
    results.append(make_failed(alone))
    launching, _ = made(tmp_path / "r", Asked([]), results)
    assert launching.launched[1:] == [["ddp.plain.n1.r1", "ddp.ddp.n2.r1"]]


def test_a_round_that_is_not_complete_ends_the_run_and_is_told(tmp_path: Path) -> None:
    asked = Asked([], [])
    results = [make_result(cell, 0.1) for cell in ROWS]
    launching, ended = made(tmp_path / "r", asked, results, "complete", "over budget")
    assert ended == "over budget" and len(launching.launched) == 2
    assert asked.told == ["let go", "done", "wait", "claim", "over budget"]


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        (ROWS, None),
        ([make_cell("ddp", 2, purpose="save"), *ROWS], "checkpoints"),
        ([make_cell("ddp", 2, purpose="fail"), *ROWS], "failures"),
        ([], "only collectives"),
        ([make_cell("ddp", 2, race=Race(samples=64, evaluate_every=32))], "another seed"),
    ],
)
def test_why_a_run_makes_no_further_round(cells: list[Cell], says: str | None) -> None:
    info = make_info(cells)
    found = why_separate(info)
    assert found is None if says is None else says in str(found)
    hosts = VirtualHosts(link_bit_per_s=(100_000_000,))
    spec = info.spec.model_copy(update={"virtual_hosts": hosts})
    assert "virtual hosts" in str(why_separate(info.model_copy(update={"spec": spec})))
