"""Lockstep as the terminal and the page show it, and the sentence that compares it."""

import pytest

from scalebench.records.rows.lockstep import LockstepFigures, RankShares
from scalebench.report import render_table
from scalebench.report.page.charts import make_chart
from scalebench.report.page.palette import assign
from scalebench.report.page.staleness_figure import STALENESS, conclude
from scalebench.report.tables import lockstep
from scalebench.report.tables import lockstep as tables
from tests.builders.races import figures
from tests.builders.summaries import make_plain, make_row, make_summary

WAITING = LockstepFigures(
    ranks=[
        RankShares(rank=0, compute=0.35, exchange=0.05, wait=0.6),
        RankShares(rank=1, compute=0.95, exchange=0.05, wait=0.0),
    ],
    traced=True,
)
STALE = LockstepFigures(
    ranks=[
        RankShares(rank=0, compute=0.97, exchange=0.02, wait=0.01, num_batches=384),
        RankShares(rank=1, compute=0.9, exchange=0.1, wait=0.0, num_batches=128),
    ],
    traced=False,
    staleness={0: 256, 1: 200, 3: 56},
    num_dropped=7,
)


def rows_of(server_s, server_samples):
    return [
        make_plain(race=figures(8, 2048)),
        make_row("ddp", 2, strategy="ddp", race=figures(8, 2048), lockstep=WAITING),
        make_row(
            "server",
            2,
            strategy="parameter-server",
            race=figures(server_s, server_samples),
            lockstep=STALE,
        ),
    ]


def test_the_table_says_where_each_ranks_time_went_and_how_stale_gradients_were():
    text = render_table(make_summary(rows_of(4, 2048)), width=150)
    shown = text.split("Lockstep ", 1)[1].split("Of each rank")[0]
    lines = {line.split(" ")[0]: line for line in shown.splitlines()}
    ddp, server = lines["ddp"], lines["server"]
    assert "35, 95 %" in ddp and "60, 0 %" in ddp
    for told in ("384, 128", "97, 90 %", "2, 10 %", "0.72", "0: 50 %, 1: 39 %, 3: 11 %"):
        assert told in server
    assert server.rstrip().endswith("7")


def test_nothing_is_said_where_all_train_in_lockstep():
    assert "Lockstep" not in render_table(make_summary(rows_of(4, 2048)[:2]), width=150)


@pytest.mark.parametrize(
    ("server_s", "samples", "told"),
    [
        (
            4,
            2458,
            "Lockstep loses here: server trains 2.40 times the samples per second of ddp, needs"
            " 1.20 times the samples, and is 2.00 times as fast to the target; in ddp, rank 0"
            " waits 60 %",
        ),
        (10, 4096, "Leaving lockstep costs more than waiting here: server trains 1.60 times"),
    ],
)
def test_what_waiting_costs_against_what_staleness_costs(server_s, samples, told):
    assert told in (lockstep.sentence(rows_of(server_s, samples)) or "")


def test_without_ddp_there_is_nothing_to_compare():
    assert lockstep.sentence(rows_of(4, 2048)[::2]) is None


def test_the_page_draws_the_distribution():
    rows = rows_of(4, 2048)
    figure = STALENESS.draw(rows, assign(rows))
    (curve,) = figure.data
    assert list(curve.x) == [0, 1, 2, 3]
    assert list(curve.y) == pytest.approx([50, 39.06, 0, 10.94], abs=0.01)
    assert "server, N=2 are 0.72 steps old in the mean; equal ranks" in (conclude(rows) or "")
    assert STALENESS.draw(rows[:2], assign(rows)) is None
    chart = make_chart(STALENESS, "staleness", rows, assign(rows))
    assert chart is not None and [entry.name for entry in chart.key] == ["server, N=2"]
    (table,) = tables.tables(rows)
    assert len(table.lines) == 2
