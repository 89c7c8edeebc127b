import base64
import csv
import gzip
import html
import io
import json
import random
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plotly import graph_objects as go

from scalebench.records.largest_batch import LargestBatch
from scalebench.records.summary import StepSamples, Summary
from scalebench.report import render_csv, render_page
from scalebench.report.export import frames
from scalebench.report.findings import findings
from scalebench.report.page import figure_style, figures, palette
from scalebench.report.page.charts import json_for_script
from tests.builders.summaries import (
    HOSTILE,
    gpu_rows,
    hostile_summary,
    make_missing,
    make_plain,
    make_row,
    make_summary,
    many_rows,
    usual_rows,
)


class Page(HTMLParser):
    """What a browser would make of the page: elements, attributes, scripts, text."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts, self.words = [], [], []
        self._in_script = False
        self.feed(text)
        self.text = html.unescape(" ".join(" ".join(self.words).split()))

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag == "script":
            self._in_script = True
            self.scripts.append((dict(attributes), []))

    def handle_endtag(self, tag):
        self._in_script = self._in_script and tag != "script"

    def handle_data(self, data):
        if self._in_script:
            self.scripts[-1][1].append(data)
        else:
            self.words.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def specs(self):
        typed = [s for s in self.scripts if s[0].get("type") == "application/json"]
        return [json.loads("".join(data)) for _, data in typed]


@pytest.fixture(scope="module")
def usual():
    return Page(render_page([make_summary()]))


@pytest.fixture(scope="module")
def hostile():
    return Page(render_page([hostile_summary()]))


def test_sections_stand_in_their_order(usual):
    names = [
        "Verdict", "Results", "Speedup", "Efficiency", "Step times", "Not measured",
        "Marks and what to do", "Environment", "Reproduce", "Raw data",
    ]  # fmt: skip
    places = [usual.text.index(f" {name} ") for name in names]
    assert places == sorted(places)
    assert usual.text.index("CPU ranks over gloo (no CUDA device)") < places[0]


def test_the_headline_numbers_are_plain_text(usual):
    for number in ("1.712×", "85.6 %", "82.2–89.0", "21.03 ms", "rank 3: out of memory"):
        assert number in usual.text.replace("\N{NO-BREAK SPACE}", " ")


def test_nothing_is_loaded_from_anywhere(usual):
    loaded = [a.get("src") for tag in ("script", "img", "iframe") for a in usual.all(tag)]
    loaded += [a.get("href") for a in usual.all("link")]
    assert [place for place in loaded if place] == ["data:,"]
    (policy,) = [m["content"] for m in usual.all("meta") if "http-equiv" in m]
    assert policy.startswith("default-src 'none'") and "unsafe-eval" not in policy
    assert "'unsafe-inline'" not in policy.split("script-src")[1].split(";")[0]


def test_plotly_is_in_the_page_once():
    text = render_page([make_summary(), make_summary()])
    assert len([s for s in Page(text).scripts if not s[0].get("type")]) == 2
    assert len(text) < 5_500_000


def test_a_page_without_figures_carries_no_plotly():
    text = render_page([make_summary([make_missing(status="failed", reason="no")])])
    assert len(text) < 100_000
    assert "no result at any size" in text
    assert "Speedup needs a measured size" in text


def test_each_chart_has_an_alternative_and_a_table(usual):
    charts = [a for a in usual.all("div") if a.get("class") == "chart"]
    assert len(charts) == 3
    assert all(a["role"] == "group" and len(a["aria-label"]) > 40 for a in charts)
    assert len(usual.all("details")) == 3


def test_downloads_hold_the_data(usual):
    links = {a["data-name"]: a["href"] for a in usual.all("a") if "download" in a}
    packed = {n: base64.b64decode(u.partition("base64,")[2]) for n, u in links.items()}
    content = {name: gzip.decompress(file).decode() for name, file in packed.items()}
    assert Summary.model_validate_json(content["summary.json"]) == make_summary()
    assert content["summary.csv"] == render_csv(make_summary())


@pytest.mark.parametrize("with_suite", [False, True])
def test_the_largest_batches_are_a_table_and_not_a_wall_of_notices(with_suite):
    batches = [
        LargestBatch(suite="ddp", case="ddp-25mb", world_size=n, fits=80, too_large=84)
        for n in (1, 2)
    ]
    told = [batch.notice(with_suite) for batch in batches]
    summary = make_summary(notices=["the clock was set", *told], largest_batches=batches)
    text = render_page([summary])
    assert "<h4>Largest batch</h4>" in text
    assert re.findall(r'<p class="notice">(.*?)</p>', text) == [
        "the clock was set",
        "every case at the largest batch that fits a rank, see Memory",
    ]


def test_huge_raw_data_stay_beside_the_page():
    draw = random.Random(0)
    samples = [StepSamples(repeat=0, step_s=[draw.uniform(0.1, 0.2) for _ in range(50_000)])]
    text = render_page([make_summary([make_plain(samples=samples)])])
    assert len(text) < 5_500_000
    assert "without the raw step times" in text


def test_several_runs_have_sections_and_ids_of_their_own():
    page = Page(render_page([make_summary(), make_summary(gpu_rows(), run_id="second")]))
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    assert {"run-1", "run-2"} <= set(ids)
    assert len(page.specs()) == 6


def test_no_run_at_all_is_a_page_too():
    assert "No run was given" in render_page([])


def test_hostile_strings_make_no_element_and_no_handler(hostile):
    assert len([s for s in hostile.scripts if not s[0].get("type")]) == 2
    assert not hostile.all("img") and not hostile.all("iframe")
    for tag, attributes in hostile.elements:
        assert not [name for name in attributes if name.startswith("on")], tag
        assert not (attributes.get("href") or "").startswith("javascript")
    assert "{{ 7 * 7 }}" in hostile.text and "49{%" not in hostile.text


def test_hostile_strings_survive_in_the_figures_as_text(hostile):
    specs = json.dumps(hostile.specs())
    assert len(hostile.specs()) == 12
    assert "<script" not in specs and "<img" not in specs and "<a " not in specs
    assert "%{customdata[0]}<extra>" in specs
    assert "&lt;script&gt;" in specs


def test_plotly_templates_in_names_are_disarmed():
    assert "%{" not in figure_style.safe("%{customdata[0]}")
    assert "<" not in figure_style.safe("<b>x</b>")


@given(st.text())
def test_json_in_a_script_cannot_end_it_and_reads_back(text):
    block = json_for_script(json.dumps({"x": text + "</script><!--"}, ensure_ascii=False))
    assert not set("<>&\u2028\u2029") & set(block)
    assert json.loads(block)["x"] == text + "</script><!--"


def test_a_case_looks_the_same_in_every_figure():
    rows = usual_rows()
    looks = palette.assign(rows)
    for draw in (figures.speedup_figure, figures.efficiency_figure):
        figure = draw(rows, looks)
        colors = {t.name: t.line.color for t in figure.data if t.legendgroup}
        assert colors == {"ddp-25mb": palette.COLORS[0], "ddp-1mb": palette.COLORS[1]}


def test_many_cases_never_look_alike():
    looks = palette.assign(make_row(f"case-{i}") for i in range(40))
    assert len(set(looks.values())) == 40


def test_ten_cases_have_ten_colours():
    looks = palette.assign(make_row(f"case-{i}") for i in range(10))
    assert len({look.color for look in looks.values()}) == 10


def test_speedup_is_drawn_with_its_interval_at_the_tested_sizes():
    rows = usual_rows()
    figure = figures.speedup_figure(rows, palette.assign(rows))
    line = next(t for t in figure.data if t.name == "ddp-25mb")
    assert [round(x) for x in line.x] == [1, 2, 4]
    assert line.y[1] == pytest.approx(1.712)
    assert line.error_y.array[1] == pytest.approx(1.712 * 0.04)
    assert line.error_y.arrayminus[1] == pytest.approx(1.712 * 0.04)
    assert list(figure.layout.xaxis.tickvals) == [1, 2, 4]
    assert "95 % interval 1.644–1.780, 3 launches" in line.customdata[1][0]
    assert "batch 32 (16 per rank)" in line.customdata[1][0]


def test_speedups_of_one_size_stand_side_by_side_unless_the_axis_is_logarithmic():
    def places(sizes):
        rows = many_rows(cases=3, sizes=sizes)
        figure = figures.speedup_figure(rows, palette.assign(rows))
        return [line.x[1] for line in figure.data if line.legendgroup]

    first, second, third = places((1, 2, 4))
    assert 1.8 < first < second < third < 2.2
    assert second == pytest.approx(2)
    assert places((1, 2, 32)) == [2, 2, 2]


def test_oversubscribed_points_are_hollow_and_in_the_key(usual):
    rows = usual_rows()
    figure = figures.efficiency_figure(rows, palette.assign(rows))
    line = next(t for t in figure.data if t.name == "ddp-25mb")
    assert list(line.marker.symbol) == ["circle", "circle", "circle-open"]
    assert any(t.name == "hollow: oversubscribed" for t in figure.data)
    assert "hollow: oversubscribed" in usual.text
    assert "hollow" not in Page(render_page([make_summary(gpu_rows())])).text


def test_the_step_figure_has_a_lane_for_each_launch():
    rows = [make_plain(), make_row()]
    figure = figures.steps_figure(rows, palette.assign(rows))
    boxes = [t for t in figure.data if isinstance(t, go.Box)]
    assert [len(box.y) for box in boxes] == [3, 3]


def test_a_full_suite_stays_small():
    rows = many_rows()
    figure = figures.steps_figure(rows, palette.assign(rows))
    points = sum(len(t.x) for t in figure.data if isinstance(t, go.Scatter))
    assert 1000 < points <= figures.MAX_POINTS


def test_figures_without_data_are_not_drawn():
    rows = [make_missing()]
    looks = palette.assign(rows)
    for draw in (figures.speedup_figure, figures.efficiency_figure, figures.steps_figure):
        assert draw(rows, looks) is None


@given(st.lists(st.floats(1e-6, 1e3), min_size=1), st.integers(8, 60))
def test_down_sampling_keeps_the_extremes(values, most):
    kept = figures.sampled(values, most)
    assert len(kept) == min(most, len(values))
    assert (kept[0], kept[-1]) == (min(values), max(values))


def test_csv_is_flat_and_complete():
    lines = list(csv.DictReader(io.StringIO(render_csv(make_summary()))))
    assert len(lines) == len(usual_rows())
    row = lines[2]
    assert float(row["efficiency"]) == pytest.approx(0.856)
    assert float(row["efficiency_low"]) == pytest.approx(0.856 * 0.96)
    assert (row["efficiency_n"], row["gradient_check"]) == ("3", "verified")
    assert lines[4]["status"] == "skipped" and lines[4]["efficiency"] == ""
    assert json.loads(row["strategy_settings"])["bucket_mb"] == 25.0
    assert "samples" not in row and "{" not in row["step_s"]


def test_stamps_are_split_at_semicolons_whatever_their_details():
    row = make_row(stamps=["foreign load: 3 % stolen; 1.1 processors busy", "swap: 2 MB read"])
    assert frames.flatten(row)["stamps"].split(";") == [
        "foreign load: 3 % stolen, 1.1 processors busy",
        "swap: 2 MB read",
    ]


def test_the_page_shows_the_details_of_a_stamp_beside_its_row():
    row = make_row(stamps=["throttled: power cap in 40 % of the readings"])
    text = Page(render_page([make_summary([make_plain(), row])])).text
    shown = text[text.index("Marks and what to do") :].replace("\N{NO-BREAK SPACE}", " ")
    assert "N=2: power cap in 40 % of the readings" in shown


def test_csv_defuses_formulas():
    text = render_csv(make_summary([make_missing(reason="=HYPERLINK(1)")]))
    assert ",'=HYPERLINK(1)," in text


def test_every_estimate_of_a_row_is_known_to_the_frames():
    assert {"step_s", "efficiency", "mfu", "exposed_comm_s", "launch_s"} <= set(frames.ESTIMATES)


def test_a_traceback_keeps_its_lines():
    text = render_page([make_summary([make_missing(status="failed", reason="a\n  b\nc")])])
    assert re.search(r"<pre[^>]*>a\n  b\nc</pre>", text)


def test_hostile_corpus_reaches_the_verdict():
    assert len(findings.judge(hostile_summary()).suites) == 2
    assert len(HOSTILE) > 10
