import json
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.records.summary import StepSamples
from scalebench.report import render_page
from scalebench.report.figures import scaling
from scalebench.report.figures.charts import json_for_script
from tests.builders.shown.pages import Page
from tests.builders.summaries import hostile_summary, make_missing, make_plain, make_summary


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


def test_huge_raw_data_stay_beside_the_page():
    draw = random.Random(0)
    samples = [StepSamples(repeat=0, step_s=[draw.uniform(0.1, 0.2) for _ in range(50_000)])]
    text = render_page([make_summary([make_plain(samples=samples)])])
    assert len(text) < 5_500_000
    assert "without the raw step times" in text


def test_hostile_strings_make_no_element_and_no_handler(hostile):
    assert len([s for s in hostile.scripts if not s[0].get("type")]) == 2
    assert not hostile.all("img") and not hostile.all("iframe")
    for tag, attributes in hostile.elements:
        assert not [name for name in attributes if name.startswith("on")], tag
        assert not (attributes.get("href") or "").startswith("javascript")
    assert "{{ 7 * 7 }}" in hostile.text and "49{%" not in hostile.text


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
