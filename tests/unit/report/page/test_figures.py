"""The figures of a run's folder: what is drawn is what was measured, all of them with words."""

import json
from dataclasses import replace

import plotly.graph_objects as go
import pytest

from scalebench.records.largest_batch import LargestBatch
from scalebench.report import render_page
from scalebench.report.gate.history import history_table
from scalebench.report.page import (
    budget_figure,
    comparison,
    extrapolation_figure,
    heat_figure,
    kinds,
    link_figure,
    palette,
    power_figure,
    prediction_figure,
    timeline_figure,
)
from scalebench.report.page.charts import Chart, legend, make_chart
from scalebench.report.page.compression_figure import COMPRESSION
from scalebench.report.page.sections import Material, sections
from scalebench.report.tables.max_batch import max_batch_table
from scalebench.report.words import wording
from tests.builders.gated import gated_run
from tests.builders.page_data import make_evidence, make_outlook, make_profile, make_timeline
from tests.builders.summaries import (
    HOSTILE,
    attributed,
    estimate,
    gpu_rows,
    hostile_summary,
    make_compression,
    make_plain,
    make_prediction,
    make_row,
    make_summary,
    samples,
    traced_rows,
    usual_rows,
)


def drawn(kind, rows) -> tuple[Chart, list[dict]]:
    chart = make_chart(kind, "x", rows, palette.assign(rows))
    assert chart is not None
    return chart, json.loads(chart.spec)["data"]


def predicted_row(row, error=0.02):
    """The row with a prediction, two operations of which one was measured."""
    assert row.step_s is not None
    step_s = row.step_s.value * (1 + error)
    operation = {"op": "all_reduce", "size_bytes": 1_000_000, "ready_s": 0.01, "low_s": 0.009,
                 "high_s": 0.011, "predicted_s": 0.010}  # fmt: skip
    told = make_prediction(
        step_s, efficiency=0.85 / (1 + error), low_s=step_s * 0.9, high_s=step_s * 1.1,
        operations=[{**operation, "measured_s": 0.0104}, {**operation, "measured_s": None}],
    )  # fmt: skip
    changes = {"predicted_step_s": step_s, "prediction_error": error, "prediction": told}
    return row.model_copy(update=changes)


def compressed_row(case, payload, loss, method="topk", pays_below=2e6):
    row = make_row(case, 2, strategy="compressed")
    losses = {"equal_steps": 20, "loss_after_steps": loss, "loss_of_none_after_steps": 5.0,
              "equal_s": 3.0, "loss_after_s": loss + 0.1, "loss_of_none_after_s": 5.1,
              "target_loss": 5.0, "steps_to_target": None,
              "time_to_target_s": None, "time_of_none_to_target_s": 3.0}  # fmt: skip
    told = make_compression(
        method, payload_bytes=payload, wire_bytes=payload, losses=losses,
        step_ratio_to_none=estimate(1.1),
        break_even_byte_per_s=estimate(pays_below) if pays_below else None,
    )  # fmt: skip
    return row.model_copy(update={"compression": told})


def test_the_waterfall_ends_where_the_step_ends():
    rows = traced_rows()
    chart, data = drawn(budget_figure.WATERFALL, rows)
    assert len(data) == 2 and [trace["visible"] for trace in data] == [True, False]
    budget = budget_figure.in_order(rows)[0][1]
    bars = list(zip(data[0]["base"], data[0]["x"], strict=True))
    assert bars[0] == pytest.approx((0, 1e3 * budget.ideal_s), abs=1e-5)
    assert bars[-1] == pytest.approx((0, 1e3 * budget.measured_s), abs=1e-5)
    end = 1e3 * budget.ideal_s
    for (base, length), part in zip(bars[1:-1], budget_figure.drawn_parts(rows), strict=True):
        share = 1e3 * budget.share(part) * budget.measured_s
        assert min(end, end + share) == pytest.approx(base, abs=1e-5)
        assert length == pytest.approx(abs(share), abs=1e-5)
        end += share
    assert end == pytest.approx(1e3 * budget.measured_s, abs=1e-3)
    assert chart.choices is not None and len(chart.choices.views) == 2


def test_the_waterfall_marks_what_is_uncertain():
    row = attributed(make_row(efficiency=0.85), doubtful=["wait"])
    chart, (bars,) = drawn(budget_figure.WATERFALL, [make_plain(), row])
    labels = json.loads(chart.spec)["layout"]["yaxis"]["ticktext"]
    assert labels[-1].endswith("· 100</b>") and labels[0].startswith("ideal<br><b>")
    doubted = [text for text in labels if text.endswith("?</b>")]
    assert len(doubted) == bars["marker"]["pattern"]["shape"].count("/") == 1


def test_laws_are_drawn_on_demand_through_what_was_measured():
    rows = [
        make_plain(),
        *(make_row(world_size=n, efficiency=1 / (0.9 + 0.1 * n)) for n in (1, 2, 4)),
    ]
    chart, data = drawn(kinds.SPEEDUP, rows)
    switches = {entry.name: entry for entry in chart.key if not entry.shown}
    assert set(switches) == {"Amdahl", "USL"}
    amdahl = data[int(switches["Amdahl"].traces)]
    assert amdahl["visible"] is False  # S = 1/(0.1 + 0.9/N) is Amdahl's law with s = 0.1
    assert amdahl["y"][-1] == pytest.approx(4 / (0.9 + 0.4), rel=1e-3)
    assert kinds.law_curves(rows[:2], palette.assign(rows)) == []


def test_both_kinds_of_axes_can_be_chosen():
    chart, _ = drawn(kinds.SPEEDUP, usual_rows())
    assert chart.choices is not None
    types = [json.loads(view.layout)["xaxis.type"] for view in chart.choices.views]
    assert types == ["linear", "log"]
    large, _ = drawn(kinds.SPEEDUP, [make_plain(), make_row(), make_row(world_size=64)])
    assert large.choices is not None and large.choices.views[0].name == "log–log"


def test_the_key_is_read_off_the_traces_by_their_legend_groups():
    """First a line with a hollow marker in its group, an area, a bar, what is empty or nameless."""
    line = {"color": "red", "dash": "dot"}
    figure = go.Figure(
        [
            go.Scatter(x=[1], mode="lines", line=line, legendgroup="g", name="a &lt;b&gt;"),
            go.Scatter(x=[1], mode="markers", marker={"symbol": "square"}, legendgroup="g"),
            go.Scatter(x=[1], mode="lines", fill="toself", fillcolor="blue", name="area"),
            go.Bar(x=[1], marker={"color": "green"}, name="bar"),
            go.Scatter(x=[], mode="lines", line=line, name="empty"),
            go.Scatter(x=[1], mode="lines", line=line, legendgroup="nameless"),
            go.Scatter(x=[1], mode="markers", marker={"symbol": "circle-open"}, name="hollow"),
        ]
    )
    line_key, area, bar, hollow = legend(figure)
    assert (line_key.name, line_key.color, line_key.traces) == ("a <b>", "red", "0,1")
    assert (line_key.path, line_key.dash) == (palette.SYMBOLS["square"], palette.DASHES["dot"])
    assert [(one.path, one.color, one.dash) for one in (area, bar)] == [
        (palette.AREA, "blue", None),
        (palette.AREA, "green", None),
    ]
    assert [one.hollow for one in (line_key, area, bar, hollow)] == [False, False, False, True]
    told = legend(figure, {"bar": "a bar", "area": "", "a <b>": "", "hollow": ""})
    assert [one.name for one in told] == ["bar", "area", "a <b>", "hollow"]
    assert told[0].meaning == "a bar"


@pytest.mark.parametrize("count", [2, 7])
def test_the_page_of_several_runs_has_their_history(count):
    runs = [gated_run(seed=i, run_id=f"run-{i}") for i in range(count)]
    page = render_page(runs)
    assert f"<h4>History of {count} runs</h4>" in page
    table = history_table(runs)
    assert len(table.lines) == 9 and {len(line[4]) for line in table.lines} == {count}
    assert "History of" not in render_page(runs[:1])


def test_predicted_and_measured_steps_stand_side_by_side():
    rows = [make_plain(), predicted_row(make_row())]
    chart, data = drawn(prediction_figure.PREDICTED_STEPS, rows)
    step_s = rows[1].step_s.value
    assert data[0]["x"] == [pytest.approx(1e3 * step_s)]
    assert data[1]["x"] == [pytest.approx(1.02e3 * step_s)]
    assert data[2]["text"] == ["  +2.0 %"]
    assert "+2.0 % off" in chart.conclusion
    operations, points = drawn(prediction_figure.PREDICTED_OPERATIONS, rows)
    assert points[1]["x"] == [10.0] and points[1]["y"] == [10.4]
    assert operations.conclusion.startswith("1 of 1 operations took what was predicted")


def test_bandwidth_of_the_link():
    """D·10.3 ns at N=2: bus bandwidth is D/t, 97.1 MB/s; the fit leaves nothing."""
    rows = [make_plain(), make_row()]
    (busbw,) = link_figure.link_kinds(make_profile(), 8e8)
    chart, data = drawn(busbw, rows)
    points = next(trace for trace in data if trace["mode"] == "markers")
    assert points["y"] == pytest.approx([97.09] * 12, rel=1e-2)
    assert data[-1]["y"] == [100.0, 100.0]  # the set rate
    assert "of 100 MB/s" in chart.conclusion
    assert [entry.name for entry in chart.key][-1] == link_figure.RATE
    assert link_figure.fit_table(make_profile()).lines


def test_sweeps_of_one_operation_are_told_apart_by_what_differs():
    profile = make_profile()
    two = next(fit for fit in profile.fits if fit.world_size == 2)
    places = [two.model_copy(update={"in_place": place}) for place in (True, False)]
    points = [
        point.model_copy(update={"in_place": place})
        for point in profile.points
        for place in (True, False)
    ]
    told = profile.model_copy(update={"fits": tuple(places), "points": tuple(points)})
    names = [sweep.name for sweep in link_figure.sweeps(told)]
    assert names == ["all_reduce, N=2, in place", "all_reduce, N=2, out of place"]
    assert [s.name for s in link_figure.sweeps(profile)] == ["all_reduce, N=2", "all_reduce, N=4"]


def of_algorithms(count):
    """The calibration on 2 and 4 ranks by the backend and by ``count`` − 1 other algorithms."""
    profile = make_profile()
    names = ["backend", *(f"own-{number}" for number in range(1, count))]

    def by_each(found):
        return tuple(one.model_copy(update={"algorithm": name}) for one in found for name in names)

    return profile.model_copy(
        update={"points": by_each(profile.points), "fits": by_each(profile.fits)}
    )


def test_of_many_sweeps_only_the_usual_ones_are_drawn_at_first():
    rows = [make_plain(), make_row()]
    few, many = of_algorithms(link_figure.MOST_DRAWN // 2), of_algorithms(6)
    for kind in link_figure.link_kinds(few, 8e8):
        chart, data = drawn(kind, rows)
        assert all(trace.get("visible", True) for trace in data)
        assert all(entry.shown for entry in chart.key)
    for kind in link_figure.link_kinds(many, 8e8):
        chart, data = drawn(kind, rows)
        groups = {t["legendgroup"] for t in data if t.get("visible", True) and "legendgroup" in t}
        assert groups == {"all_reduce, N=4, backend"}
        sweeps = [entry for entry in chart.key if entry.name.startswith("all_reduce")]
        assert len(sweeps) == 12
        assert [one.name for one in sweeps if one.shown] == ["all_reduce, N=4, backend"]


def test_a_timeline_has_a_lane_for_each_rank():
    rows = [make_plain(), make_row(world_size=2), make_row("other", world_size=4)]
    found = [make_timeline(row) for row in rows[1:]]
    chart, data = drawn(timeline_figure.timeline_kind(found), rows)
    compute = next(trace for trace in data if trace["legendgroup"] == "compute")
    assert compute["x"] == [10, 2, 10, 2] and compute["base"] == [0, 14, 0, 14]
    assert {entry.name for entry in chart.key} >= {"computation", "waiting", "hidden", "in flight"}
    assert "rank 0 computes 60 % of the time" in chart.conclusion
    views = chart.choices.views if chart.choices else ()
    assert [view.height for view in views] == sorted({view.height for view in views})
    assert sum(len(view.traces.split(",")) for view in views) == len(data)


def test_a_row_of_many_ranks_says_which_are_shown():
    one = replace(make_timeline(make_row(world_size=64)), num_ranks=64, not_apart="no clock")
    chart, _ = drawn(timeline_figure.timeline_kind([one]), [make_row(world_size=64)])
    assert "16 of 64 ranks are shown." in chart.remarks[0]
    assert "transfer includes waiting: no clock." in chart.remarks[1]


def test_the_heat_map_names_the_slow_rank_and_keeps_warm_up_out_of_the_colours():
    rows = [make_plain(), make_row(world_size=4)]
    grids = make_evidence(make_summary(rows)).grids
    chart, data = drawn(heat_figure.grid_kind(grids), rows)
    assert "rank 3 is 10.0 % slower" in chart.conclusion
    assert data[0]["zmax"] == pytest.approx(10.0)  # not the 100 % of the warm-up
    assert data[1]["x"] == [4.5, 4.5]
    assert chart.table[3][:5] == ("ddp-25mb", "4", "3", "22.0 ms", "10.0 %")


def test_compression_is_drawn_by_bytes_by_time_and_by_bandwidth():
    rows = [
        compressed_row("none", 10_000_000, 5.0, "none", None),
        compressed_row("topk", 1_000_000, 5.2),
        compressed_row("noop", 0, 5.9, "noop", None),
    ]
    by_bytes, by_time, by_bandwidth = (drawn(kind, rows) for kind in COMPRESSION)
    assert len(by_bytes[1]) == 2 and "topk sends least, 1.00 MB" in by_bytes[0].conclusion
    assert len(by_time[1]) == 3 and by_time[1][2]["marker"]["symbol"].endswith("-open")
    assert "the exact all-reduce has the lowest loss, 5.1" in by_time[0].conclusion
    assert by_bandwidth[1][0]["x"] == [pytest.approx(16.0)]  # 2 MB/s in Mbit/s
    assert "pays below 16.0 Mbit/s" in by_bandwidth[0].conclusion


def test_power_is_drawn_with_what_held_it_down():
    rows = gpu_rows()
    devices = make_evidence(make_summary(rows)).devices
    chart, data = drawn(power_figure.power_kind(devices), rows)
    bands = [trace for trace in data if trace.get("legendgroup") == power_figure.THROTTLED]
    assert bands and bands[0]["x"][:4] == [4.0, 4.0, 5.5, 5.5]
    assert "held its clock down for 1.50 s" in chart.conclusion and "power cap" in chart.conclusion
    assert {trace.get("yaxis") for trace in data} >= {"y", "y2", "y3"}


def test_a_projection_has_bands_and_says_what_was_refused():
    rows = [make_plain(), make_row()]
    extrapolation = make_outlook("run", rows[1:])
    chart, data = drawn(extrapolation_figure.extrapolation_kind(extrapolation, "ddp"), rows)
    curve = next(trace for trace in data if trace.get("mode") == "lines+markers")
    assert curve["x"] == [8, 16, 64]
    band = next(trace for trace in data if trace.get("fill"))
    middle = curve["y"][0]
    assert min(band["y"]) < middle < max(band["y"])
    assert chart.choices is not None and len(chart.choices.views) == 2
    everywhere = [v for v in chart.choices.views if str(len(data) - 1) in v.traces.split(",")]
    assert len(everywhere) == 2  # the measured marks
    assert any("no sample for each rank" in remark for remark in chart.remarks)


def test_each_suite_shows_its_own_largest_batch():
    found = [
        LargestBatch(suite=suite, case="ddp", world_size=2, fits=fits, too_large=fits + 3)
        for suite, fits in (("small", 96), ("large", 48))
    ]
    for suite, line in (("small", ("96", "99", "192")), ("large", ("48", "51", "96"))):
        table = max_batch_table([make_row("ddp", 2, suite=suite)], found)
        assert table is not None and table.lines[0][:5] == ("ddp", "2", *line)
    assert max_batch_table([make_row("ddp", 2, suite="other")], found) is None


def slower(row, factor):
    changed = samples(row.step_s.value * factor, 3, seed=7)
    return row.model_copy(update={"samples": changed})


def test_two_runs_are_held_against_one_another():
    base = [make_row("ddp-25mb", 2), make_row("ddp-1mb", 2), make_row("gone", 2)]
    new = [slower(base[0], 1.2), slower(base[1], 1.0), make_row("ddp-25mb", 4)]
    before, after = make_summary(base), make_summary(new, run_id="another")
    found = comparison.compare("c", before, after, palette.assign([*base, *new]))
    assert found.conclusion.startswith("Of 2 rows in both runs, 1 is slower, ddp-25mb, N=2 most")
    assert found.conclusion.endswith("and 1 shows no change.")
    table, facts, alone = found.tables
    assert [line[6] for line in table.lines] == ["slower", "no change seen"]
    assert ("run", before.run_id, "another") in facts.lines
    assert {line[2] for line in alone.lines} == {"only in the first run", "only in the second run"}


def test_rows_that_trained_other_batches_are_not_compared():
    base, new = make_row(), make_row(scaling="weak")
    found = comparison.compare(
        "c", make_summary([base]), make_summary([new]), palette.assign([base])
    )
    assert found.conclusion == "The runs have no row in common."
    assert "different: scaling" in found.tables[-1].lines[0][2]


def everything():
    """A summary in which every section has something to show, and its page_data."""
    rows = [make_plain(), *(predicted_row(row) for row in traced_rows()[1:])]
    summary = make_summary(rows)
    return summary, make_evidence(summary)


def test_sections_come_in_their_order_and_each_figure_has_words_and_a_table():
    summary, page_data = everything()
    material = Material("run-1", wording.by_suite(summary.rows), palette.assign(summary.rows),
                        summary.largest_batches, page_data)  # fmt: skip
    found = sections(material)
    assert [section.name for section in found] == [
        "speedup", "efficiency", "budget", "model", "timeline", "communication", "steps",
        "memory", "extrapolation",
    ]  # fmt: skip
    charts = [chart for section in found for chart in section.charts]
    assert len({chart.id for chart in charts}) == len(charts) > 10
    for chart in charts:
        assert chart.conclusion.endswith(".") and len(chart.conclusion.split()) > 3, chart.id
        assert chart.conclusion in chart.label
        assert chart.table and len(chart.table[0]) == len(chart.header), chart.id


def test_a_run_without_a_link_says_in_one_line_how_to_get_predictions():
    reason = {"predicted_step_s": "no link was calibrated in this run"}
    text = render_page([make_summary([make_plain(), make_row(unavailable=reason)])])
    assert "Nothing was predicted: no link was calibrated in this run." in text


def test_hostile_strings_stay_text_in_every_figure():
    summary = hostile_summary()
    page_data = make_evidence(summary, device=HOSTILE[0])
    evil = [predicted_row(row) if row.step_s else row for row in summary.rows]
    changed = summary.model_copy(update={"rows": evil})
    text = render_page([changed, changed], [page_data, page_data])
    for script in text.split('<script type="application/json"')[1:]:
        spec = script.partition("</script>")[0]
        data = json.dumps(json.loads(spec.partition(">")[2]))
        assert "<script" not in data and "<img" not in data and "<a " not in data
    assert "<script>window.pwned" not in text and "<img src=x" not in text


def test_a_run_of_collectives_alone_shows_its_links():
    summary = make_summary([])
    text = render_page([summary], [make_evidence(summary)])
    assert ">Bus bandwidth of the link</h4>" in text and ">Speedup</h2>" not in text
