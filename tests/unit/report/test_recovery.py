"""Checkpoints in one sentence: what costs least, and whether what was restored is the same."""

import pytest

from scalebench.report import render_table
from scalebench.report.findings.findings import general
from scalebench.report.tables import recovery
from tests.builders.recoveries import restore, rows_with, save
from tests.builders.summaries import make_row, make_summary

FULL, ASYNC = save("full", 0.040, slower_s=None), save("async", 0.020)


@pytest.mark.parametrize(
    ("saves", "restores", "told"),
    [
        (
            [FULL, ASYNC],
            [restore(2, True), restore(1, None)],
            "ddp on 2 CPU ranks: saving async costs training 20.0 ms a checkpoint. "
            "All 2 restores brought back every bit, 1 of them with another number of ranks.",
        ),
        ([save("full", 0.0205), ASYNC], [], "full may be as cheap. Nothing was restored."),
        ([FULL], [restore(2, False)], "After 1 of them, further steps differ in some bits"),
    ],
)
def test_the_cheapest_way_is_named_with_what_was_restored(saves, restores, told):
    assert told in recovery.headline(rows_with(saves, restores))


def test_checkpoints_in_memory_are_said_to_be_lost_with_the_machine():
    shown = render_table(make_summary(rows_with([FULL], [], "tmpfs")), 110)
    assert "on tmpfs (memory: gone when the machine stops)" in " ".join(shown.split())


def test_a_suite_that_saves_is_not_told_to_trace():
    rows = rows_with([FULL], [])
    assert general(make_summary(rows)) == ()
    other = make_row("ddp", 2).model_copy(update={"suite": "fsdp"})
    assert "No step was traced" in general(make_summary([*rows, other]))[0]
