import base64
import gzip
import json
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.records.largest_batch import LargestBatch
from scalebench.records.summary import StepSamples, Summary
from scalebench.report import render_csv, render_page
from scalebench.report.figures import scaling
from scalebench.report.figures.charts import json_for_script
from tests.builders.pages import Page
from tests.builders.summaries import (
    gpu_rows,
    hostile_summary,
    make_missing,
    make_plain,
    make_summary,
)


@pytest.fixture(scope="module")
def usual():
    return Page(render_page([make_summary()]))


@pytest.fixture(scope="module")
def hostile():
    return Page(render_page([hostile_summary()]))


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


@given(st.text())
def test_json_in_a_script_cannot_end_it_and_reads_back(text):
    block = json_for_script(json.dumps({"x": text + "</script><!--"}, ensure_ascii=False))
    assert not set("<>&\u2028\u2029") & set(block)
    assert json.loads(block)["x"] == text + "</script><!--"


@given(st.lists(st.floats(1e-6, 1e3), min_size=1), st.integers(8, 60))
def test_down_sampling_keeps_the_extremes(values, most):
    kept = scaling.sampled(values, most)
    assert len(kept) == min(most, len(values))
    assert (kept[0], kept[-1]) == (min(values), max(values))


def test_a_traceback_keeps_its_lines():
    text = render_page([make_summary([make_missing(status="failed", reason="a\n  b\nc")])])
    assert re.search(r"<pre[^>]*>a\n  b\nc</pre>", text)
