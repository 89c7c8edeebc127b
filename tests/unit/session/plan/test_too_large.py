"""Which cells are not tried after a smaller one of their case ran out of memory."""

import pytest

from scalebench.records.run import CellResult
from scalebench.session.plan.max_batch import why_too_large
from scalebench.spec import Cell, Ddp, Fsdp
from tests.builders.runs import make_cell, make_result


def cell(size: int, **changes: object) -> Cell:
    return make_cell("ddp", size).model_copy(update={"rank_batch": 8, **changes})


def out_of_memory(at: Cell) -> CellResult:
    return make_result(at).model_copy(update={"status": "oom", "reason": "rank 0: too much"})


def test_more_ranks_that_hold_no_less_are_not_tried() -> None:
    reason = why_too_large(cell(4), [out_of_memory(cell(2))])
    assert reason is not None and "N=2 ran out of memory" in reason and "--keep-going" in reason


@pytest.mark.parametrize(
    "larger",
    [
        cell(4, rank_batch=4),  # a smaller part of a divided batch
        cell(1),
        cell(2),
        cell(4, case="other"),
        cell(4, strategy=Fsdp()),
    ],
)
def test_what_may_fit_is_tried(larger: Cell) -> None:
    failed = cell(2, strategy=larger.strategy if isinstance(larger.strategy, Fsdp) else Ddp())
    assert why_too_large(larger, [out_of_memory(failed)]) is None
