"""The figure of a race: every seed, their median, and three things to draw it against."""

from dataclasses import replace

import pytest

from scalebench.analysis.page_data.races import RaceCurve
from scalebench.report.page.charts import make_chart
from scalebench.report.page.palette import assign
from scalebench.report.page.race_figure import race_kind
from tests.builders.summaries import make_plain, make_row


def curve(case, ranks, repeat, losses, batch=32):
    return RaceCurve(
        suite="ddp",
        case=case,
        world_size=ranks,
        repeat=repeat,
        samples=tuple(100 * i for i in range(len(losses))),
        trained_s=tuple(2.0 * i + repeat * i for i in range(len(losses))),
        loss=tuple(losses),
        global_batch=batch,
    )


CURVES = [
    curve("plain", 1, 0, [5.0, 4.0, 3.0]),
    curve("plain", 1, 1, [5.2, 4.4, 3.2]),
    curve("ddp", 2, 0, [5.0, 4.0, None]),
    curve("ddp", 2, 1, [5.2, 4.2, 3.1]),
]


@pytest.fixture
def drawn():
    ddp = make_row("ddp", 2).model_copy(update={"wire_bytes": 1_600_000})
    rows = [make_plain().model_copy(update={"wire_bytes": None}), ddp]
    looks = assign(rows)
    kind = race_kind(CURVES)
    return kind.draw(rows, looks), make_chart(kind, "race", rows, looks)


def test_every_seed_is_thin_and_their_median_thick(drawn):
    figure, _ = drawn
    against_time = [t for t in figure.data if t.meta == "training time"]
    widths = [trace.line.width for trace in against_time]
    assert [width > 2 for width in widths] == [False, False, True] * 2
    assert list(against_time[2].x) == [0.0, 2.5, 5.0]
    assert list(against_time[2].y) == pytest.approx([5.1, 4.2, 3.1])
    assert against_time[5].y[2] is None, "a seed diverged there: there is no median"


def test_the_axes_are_chosen_and_bytes_need_to_be_known(drawn):
    figure, chart = drawn
    assert [view.name for view in chart.choices.views] == ["training time", "samples", "bytes"]
    against_bytes = [t for t in figure.data if t.meta == "bytes"]
    assert {trace.legendgroup for trace in against_bytes} == {"ddp, N=2"}
    assert list(against_bytes[0].x) == pytest.approx([0.0, 5.0, 10.0])
    assert {t.visible for t in figure.data if t.meta != "training time"} == {False}


def test_counted_bytes_are_drawn_where_not_every_step_sends():
    counting = replace(CURVES[2], sent_bytes=(0.0, 0.0, 3e6))
    ddp = make_row("ddp", 2).model_copy(update={"wire_bytes": None})
    figure = race_kind([counting]).draw([ddp], assign([ddp]))
    against_bytes = [t for t in figure.data if t.meta == "bytes"]
    assert list(against_bytes[0].x) == [0.0, 0.0, 3.0]


def test_the_key_has_an_entry_for_each_case_over_all_axes(drawn):
    _, chart = drawn
    assert [entry.name for entry in chart.key] == ["plain, N=1", "ddp, N=2"]
    assert len(chart.key[1].traces.split(",")) == 9
    assert chart.table[2] == ("ddp", "2", "1", "200", "4.00 s", "5", "–")


def test_without_a_race_there_is_no_figure():
    rows = [make_plain(), make_row("ddp", 2)]
    assert make_chart(race_kind([]), "race", rows, assign(rows)) is None
