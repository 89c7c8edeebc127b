"""Losses are compared after as many steps as all rows beside them trained."""

import pytest

from scalebench.analysis.summarise import summarise
from tests.builders.runs import make_cell, make_failed, make_record, make_result, make_run

PLAIN, TWO = make_cell("plain", 1), make_cell("ddp", 2)


def trained(cell, losses):
    """A launch of ``len(losses)`` steps; two warm up or begin the window, the rest is clean."""
    clean = (0.1,) * (len(losses) - 2)
    ranks = [make_record(rank, clean, loss=list(losses)) for rank in range(cell.world_size)]
    return make_result(cell, ranks=ranks)


def rows_of(*results):
    run = make_run(list(results))
    return {(row.case, row.world_size): row for row in summarise(run).rows}


def test_the_faster_row_is_not_credited_with_its_more_steps():
    rows = rows_of(trained(PLAIN, [5, 4, 3, 2.5]), trained(TWO, [5, 4.1, 3.1, 2.4, 2, 1.5]))
    plain, two = rows["plain", 1], rows["ddp", 2]
    assert (plain.loss_last, two.loss_last) == (2.5, 1.5)
    assert (plain.loss_equal, two.loss_equal) == (2.5, pytest.approx(2.4))
    assert plain.loss_equal_steps == two.loss_equal_steps == 4


def test_a_row_without_a_loss_has_none_and_shortens_nobody():
    rows = rows_of(trained(PLAIN, [5, 4, 3, 2.5]), make_failed(TWO))
    assert rows["plain", 1].loss_equal_steps == 4
    gone = rows["ddp", 2]
    assert gone.loss_equal is None and gone.loss_equal_steps is None
    assert gone.unavailable["loss_equal"] == gone.unavailable["loss_last"]
