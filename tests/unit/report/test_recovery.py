"""Checkpoints as people read them: tables, one sentence, the page's figure."""

import pytest

from scalebench.analysis.projection.recovery import restart_of
from scalebench.records.rows.recovery import (
    ElasticFigures,
    ElasticStretchFigures,
    FailureFigures,
    RecoveryFigures,
    RestoreFigures,
    SaveFigures,
)
from scalebench.report import render_markdown, render_table
from scalebench.report.findings.findings import general, judge
from scalebench.report.page.charts import make_chart
from scalebench.report.page.overview import suite_card
from scalebench.report.page.palette import assign
from scalebench.report.page.recovery_figure import DURABLE, FAILURE_PHASES, SAVE_COST
from scalebench.report.tables import recovery
from scalebench.spec.recovery import BADPUT, PHASES
from scalebench.stats import Estimate
from tests.builders.summaries import make_plain, make_row, make_summary


def near(value, spread=0.05):
    return Estimate(value=value, low=value * (1 - spread), high=value * (1 + spread), n=5)


def save(method, cost_s, **changes):
    fields = {
        "stall_s": near(cost_s / 2),
        "durable_s": near(2 * cost_s),
        "bytes": 5_300_000,
        "bandwidth_byte_per_s": near(50e6),
        "steps_beside": 2.0,
        "slower_s": near(cost_s / 2),
        "cost_s": near(cost_s),
    }
    return SaveFigures(method=method, **{**fields, **changes})


def restore(saved_by, equal):
    return RestoreFigures(
        method="sharded",
        saved_world_size=saved_by,
        load_s=0.12,
        first_step_s=0.05,
        num_tensors=122,
        continues_equal=equal,
    )


def rows_with(saves, restores, file_system="ext4"):
    figures = RecoveryFigures(file_system=file_system, saves=saves, restores=restores)
    return [make_plain(), make_row("ddp", 2).model_copy(update={"recovery": figures})]


@pytest.fixture
def rows():
    saves = [save("full", 0.040, slower_s=None), save("async", 0.020)]
    return rows_with(saves, [restore(2, True), restore(1, None)])


def test_the_cheapest_way_is_named_with_what_was_restored(rows):
    assert recovery.headline(rows) == (
        "ddp on 2 CPU ranks: saving async costs training 20.0 ms a checkpoint. "
        "All 2 restores brought back every bit, 1 of them with another number of ranks."
    )


def test_a_way_that_may_be_as_cheap_is_named_too():
    rows = rows_with([save("full", 0.0205), save("async", 0.020)], [])
    assert "full may be as cheap. Nothing was restored." in recovery.headline(rows)


def test_steps_that_go_on_differently_are_said():
    rows = rows_with([save("full", 0.02)], [restore(2, False)])
    assert "After 1 of them, further steps differ in some bits" in recovery.headline(rows)


def test_the_terminal_shows_saves_and_restores(rows):
    shown = render_table(make_summary(rows), 110)
    assert "Checkpoints  5 saves of each method, on ext4" in shown
    assert "All 2 restores brought back every bit" in " ".join(shown.split())
    lines = [" ".join(text.split()) for text in shown.splitlines()]
    full = next(text for text in lines if text.startswith("ddp 2 full"))
    assert full.split(" – ")[0] == "ddp 2 full 20.0 ms 80.0 ms"
    assert "2 sharded 1 120 ms 50.0 ms 122 –" in lines


def test_checkpoints_in_memory_are_said_to_be_lost_with_the_machine():
    flat = " ".join(
        render_table(make_summary(rows_with([save("full", 0.02)], [], "tmpfs")), 110).split()
    )
    assert "on tmpfs (memory: gone when the machine stops)" in flat


def failure(kind="kill", by="scalebench", load_s=0.4):
    phases = {**dict.fromkeys(PHASES, near(0.1)), "load": near(load_s)}
    return FailureFigures(
        kind=kind,
        restarted_by=by,
        phases_s=phases,
        restart_s=near(0.5 + load_s),
        total_s=near(0.7 + load_s),
        lost_steps=2.5,
        badput_s={**dict.fromkeys(BADPUT, near(0.2)), "data": None},
    )


def test_failures_are_a_table_a_sentence_and_a_figure_of_their_phases():
    figures = RecoveryFigures(
        failures=[failure(), failure("raise"), failure(by="torchrun", load_s=0.6)]
    )
    rows = [make_plain(), make_row("ddp", 2).model_copy(update={"recovery": figures})]
    assert recovery.failed(rows) == [
        "After a kill, ddp on 2 CPU ranks trains again in 900 ms under scalebench and 1.100 s "
        "under torchrun.",
    ]
    flat = " ".join(render_table(make_summary(rows), 160).split())
    assert "ddp 2 kill scalebench 100 ms 100 ms 100 ms 100 ms 100 ms 400 ms 100 ms" in flat
    figure = FAILURE_PHASES.draw(rows, assign(rows))
    assert [trace.name for trace in figure.data][:3] == ["noticed", "stopped", "started"]
    assert list(figure.data[5].x) == pytest.approx([0.4, 0.4, 0.6])
    assert figure.layout.yaxis.ticktext[2] == "N=2, kill, torchrun"
    assert restart_of(rows[1]) == pytest.approx(0.9)


def went_on_with_one():
    stretches = [
        ElasticStretchFigures(
            world_size=n,
            rank_batch=32 // n,
            accumulate=3 - n,
            first_step=first,
            num_steps=10,
            step_s=step_s,
            throughput=32 / step_s,
            loss=[2.0, 1.5],
        )
        for n, first, step_s in ((2, 1, 0.1), (1, 9, 0.2), (2, 19, 0.1))
    ]
    elastic = ElasticFigures(
        stretches=stretches, shrink_s=0.25, grow_s=0.3, loss_deviation=2.345e-6
    )
    figures = RecoveryFigures(saves=[save("full", 0.02)], elastic=elastic)
    return [make_plain(), make_row("ddp", 2).model_copy(update={"recovery": figures})]


def test_a_job_that_went_on_with_fewer_ranks_is_shown_before_during_and_after():
    flat = " ".join(render_table(make_summary(went_on_with_one()), 110).split())
    assert "ddp 2 2 16 – 100 ms 320 1 to 10 1.5000" in flat
    assert "1 2 × 16 250 ms 200 ms 160 9 to 18 1.5000" in flat
    assert "no step's loss differs by more than 2.3e-06 (relative)" in flat
    assert "| batch per rank |" in render_markdown(make_summary(went_on_with_one()))


def test_the_figure_has_a_bar_for_each_cost_and_a_mark_on_the_disk(rows):
    figure = SAVE_COST.draw(rows, assign(rows))
    blocked, slower, durable = figure.data
    assert list(blocked.x) == pytest.approx([20, 10])  # ms
    assert list(slower.x) == pytest.approx([0, 10])
    assert durable.name == DURABLE and list(durable.x) == pytest.approx([80, 40])
    assert list(figure.layout.yaxis.ticktext) == ["N=2, full", "N=2, async"]
    chart = make_chart(SAVE_COST, "recovery", rows, assign(rows))
    assert chart is not None and len(chart.table) == 2 and len(chart.key) == 3


def test_the_overview_ranks_ways_by_what_a_checkpoint_costs():
    saved = [("ddp", 0.040), ("fsdp", 0.020)]
    rows = [make_plain()] + [
        make_row(name, 2).model_copy(
            update={
                "recovery": RecoveryFigures(saves=[save("full", cost), save("async", 2 * cost)])
            }
        )
        for name, cost in saved
    ]
    (verdict,) = judge(make_summary(rows)).suites
    card = suite_card(verdict, rows, assign(rows))
    assert card.caption == "what a checkpoint costs training"
    lines = [(line.name, line.text) for line in card.cases]
    assert lines == [("fsdp", "20.0 ms"), ("ddp", "40.0 ms")]
    assert card.headline == "Nothing was restored.", "costs stand beside it, once"
    assert card.loss == "", "such a suite traces no step: there is no loss to look for"


def test_a_suite_that_saves_is_not_told_to_trace(rows):
    assert general(make_summary(rows)) == ()
    other = make_row("ddp", 2).model_copy(update={"suite": "fsdp"})
    assert "No step was traced" in general(make_summary([*rows, other]))[0]
