"""The page in a real browser: drawn, silent, offline, and deaf to hostile strings."""

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("selenium")

from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from tests.browser import conftest

pytestmark = pytest.mark.browser


def compressed_row(case, payload, loss, method="topk", pays_below=2e6):
    from tests.builders.summaries import estimate, make_compression, make_row

    losses = dict.fromkeys(("steps_to_target", "time_to_target_s"))
    losses |= {"equal_steps": 20, "loss_after_steps": loss, "loss_of_none_after_steps": 5.0}
    losses |= {"equal_s": 3.0, "loss_after_s": loss + 0.1, "loss_of_none_after_s": 5.1}
    losses |= {"target_loss": 5.0, "time_of_none_to_target_s": 3.0}
    told = make_compression(
        method, payload_bytes=payload, wire_bytes=payload, losses=losses,
        step_ratio_to_none=estimate(1.1),
        break_even_byte_per_s=estimate(pays_below) if pays_below else None,
    )  # fmt: skip
    return make_row(case, 2, strategy="compressed").model_copy(update={"compression": told})


def runs():
    """Name of a page → its summaries, and the page_data that some of them have."""
    from scalebench.records.rows.script import LearningRate, ScriptChecks, ScriptFacts
    from tests.builders import summaries
    from tests.builders.shown import page_data as built

    failed = [summaries.make_missing(status="failed", reason="ValueError: <b>no</b>")]
    meagre = [
        summaries.make_plain(spread=None),
        summaries.make_row(world_size=1, efficiency=0.97, spread=None),
        summaries.attributed(summaries.make_row(spread=None), losses={"wait": -40.0}),
    ]
    compressed = [
        summaries.make_plain(),
        compressed_row("none", 10_000_000, 5.0, "none", None),
        compressed_row("topk-1pct", 1_000_000, 5.2),
        compressed_row("quantise-8bit", 2_500_000, 5.1),
        compressed_row("noop", 0, 5.9, "noop", None),
    ]
    hostile = summaries.hostile_summary()
    evil = [summaries.predicted_row(row) if row.step_s else row for row in hostile.rows]
    hostile = hostile.model_copy(update={"rows": evil})
    whole, page_data = built.everything()
    whole = whole.model_copy(update={"rows": [summaries.remembered(row) for row in whole.rows]})
    devices = summaries.make_summary(summaries.rated_rows())
    usual = summaries.make_summary()
    rate = LearningRate(first=0.1, last=0.1, last_step=50, at_one=0.1, batch=32, batch_at_one=8,
                        linear=0.4, square_root=0.2)  # fmt: skip
    checks = ScriptFacts(checks=ScriptChecks(in_sync=True, learning_rate=rate))
    script = [summaries.make_plain(), summaries.make_row(script=checks)]
    return {
        "script": ([summaries.make_summary(script)], [None]),
        "usual": ([usual], [None]),
        "full": ([summaries.make_summary(summaries.many_rows())], [None]),
        "meagre": ([summaries.make_summary(meagre)], [None]),
        "failed": ([summaries.make_summary(failed)], [None]),
        "compressed": ([summaries.make_summary(compressed)], [None]),
        "two": ([usual, usual.model_copy(update={"run_id": "again"})], [None] * 2),
        "everything": ([whole], [page_data]),
        "devices": ([devices], [built.make_evidence(devices)]),
        "hostile": ([hostile], [built.make_evidence(hostile)]),
    }


CHARTS = {"usual": 3, "full": 3, "meagre": 5, "failed": 0, "compressed": 6, "two": 7}
CHARTS |= {"everything": 12, "devices": 9, "hostile": 23, "script": 3}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    return conftest.written(tmp_path_factory.mktemp("pages"), runs())


@pytest.fixture
def visit(chromium, pages):
    def opened(name, viewport=None, scheme="light", view=""):
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        conftest.load(chromium, pages[name].as_uri(), viewport or conftest.DESKTOP)
        if view:
            conftest.go(chromium, view)
        return chromium

    yield opened
    empty = pages["usual"].with_name("empty.html")  # of the same origin, and loaded at once
    empty.touch()
    chromium.get(empty.as_uri())
    chromium.execute_script("localStorage.clear()")


def requested(driver):
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]


LABELS = """
return [...document.querySelectorAll('.open .chart')].flatMap(chart => {
  const frame = chart.getBoundingClientRect();
  return [...chart.querySelectorAll('.xtick text, .ytick text, .g-xtitle text, .annotation text, '
                             + '.textpoint text, .bartext')]
    .map(label => [label.textContent, label.getBoundingClientRect()])
    .filter(([, r]) => r.left < frame.left - 1 || r.right > frame.right + 1
                    || r.top < frame.top - 1 || r.bottom > frame.bottom + 1)
    .map(([text]) => text);
});
"""

OVERLAPS = """
return [...document.querySelectorAll('.open .chart')].flatMap(chart =>
  ['.xtick text', '.ytick text'].flatMap(kind => {
    const boxes = [...chart.querySelectorAll(kind)].map(t => t.getBoundingClientRect());
    return boxes.flatMap((a, i) => boxes.slice(i + 1).filter(b =>
      a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1
    ).map(() => chart.id + ' ' + kind));
  }));
"""


OUTSIDE = """
return [...document.querySelectorAll('.open .chart')].filter(chart => {
  const frame = chart.getBoundingClientRect();
  return [...chart.querySelectorAll('svg.main-svg .point')].map(p => p.getBoundingClientRect())
    .some(p => p.left + 8 < frame.left || p.left > frame.right
      || p.top + 8 < frame.top || p.top > frame.bottom);
}).map(chart => chart.id);
"""
"""Charts that have marks of bars and lines outside of them."""


@pytest.mark.parametrize(
    ("viewport", "name"),
    [
        *((conftest.PHONE, name) for name in CHARTS),
        (conftest.DESKTOP, "everything"),
    ],
)
def test_a_page_is_whole_silent_and_asks_for_nothing(visit, pages, name, viewport):
    look_through(visit(name, viewport), pages, name, viewport)


def look_through(driver, pages, name, viewport):
    assert len(driver.find_elements(By.CSS_SELECTOR, ".chart")) == CHARTS[name]
    for view in conftest.addresses(driver):
        conftest.go(driver, view)
        width = driver.execute_script("return document.documentElement.scrollWidth")
        assert width <= viewport["width"], view
        assert driver.execute_script(CELLS) == []
        if name != "hostile":
            assert driver.execute_script(OUTSIDE) == []
            assert driver.execute_script(LABELS) == []
            assert driver.execute_script(OVERLAPS) == []
    assert driver.get_log("browser") == []
    asked = requested(driver)
    assert pages[name].as_uri() in asked
    elsewhere = {u for u in asked if not u.startswith(("data:", "blob:", "about:"))}
    assert elsewhere == {pages[name].as_uri()}


CELLS = """
return [...document.querySelectorAll('.scroll :is(td, th)')].filter(cell =>
  cell.textContent.length > 40 && cell.offsetWidth > cell.closest('.scroll').clientWidth
).map(cell => cell.textContent);
"""

COLOURS = """
const of = (selector, property) => getComputedStyle(document.querySelector(selector))[property];
return [of('body', 'backgroundColor'), of('body', 'color'), of('.open .xtick text', 'fill')];
"""


def test_the_theme_follows_the_system(visit):
    light = visit("usual", view="ddp").execute_script(COLOURS)
    dark = visit("usual", scheme="dark", view="ddp").execute_script(COLOURS)
    assert light[0] == "rgb(255, 255, 255)"
    assert all(a != b for a, b in zip(light, dark, strict=True))


def test_the_switch_changes_page_and_charts_and_is_remembered(visit):
    driver = visit("usual", view="ddp")
    light = driver.execute_script(COLOURS)
    button = driver.find_element(By.ID, "theme")
    seen = []
    for _ in range(2):
        button.click()
        seen.append((button.text, driver.execute_script(COLOURS)))
    assert seen[0] == ("theme: light", light)
    assert seen[1][0] == "theme: dark"
    assert all(a != b for a, b in zip(light, seen[1][1], strict=True))
    again = visit("usual", view="ddp")
    assert again.execute_script(COLOURS) == seen[1][1]


def toggle(driver, text, chart=""):
    of = f'[data-chart="{chart}"]' if chart else ""
    return next(b for b in driver.find_elements(By.CSS_SELECTOR, f".toggle{of}") if b.text == text)


@pytest.mark.parametrize(
    ("page", "place", "entry", "marks", "hidden"),
    [
        ("usual", ".open .chart", "ddp-25mb", ".scatterlayer .trace .point", 3),
        ("everything", "#run-1-budget-1", "waiting", ".barlayer .trace", 1),
    ],
)
def test_a_key_entry_hides_and_shows_its_case_or_part(visit, page, place, entry, marks, hidden):
    driver = visit(page, view="ddp")
    chart = driver.find_element(By.CSS_SELECTOR, place)

    def drawn():
        return len(chart.find_elements(By.CSS_SELECTOR, marks))

    before = drawn()
    button = toggle(driver, entry)
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    WebDriverWait(driver, conftest.ANSWER_LIMIT_S).until(lambda _: drawn() == before - hidden)
    button.click()
    WebDriverWait(driver, conftest.ANSWER_LIMIT_S).until(lambda _: drawn() == before)


WIDTHS = """
const bars = [...document.querySelectorAll('#run-1-budget-1 .barlayer .trace')];
return bars.map(bar => [...bar.querySelectorAll('.point path')].map(p => p.getBBox()))
  .map(boxes => boxes.map(b => [b.x, b.width]));
"""


def test_bars_are_as_long_as_their_parts_and_lie_end_to_end(visit):
    """The last row: compute −3.9, transfer 5.4, waiting 9.4, idle 4.1 %."""
    parts = visit("everything", view="ddp").execute_script(WIDTHS)
    compute, transfer, wait, idle = (boxes[-1] for boxes in parts[:4])
    scale = transfer[1] / 5.4
    assert scale > 10
    for (_, width), points in ((compute, 3.9), (wait, 9.4), (idle, 4.1)):
        assert abs(width - scale * points) < 1
    assert abs(compute[0] + compute[1] - transfer[0]) < 1
    assert abs(transfer[0] + transfer[1] - wait[0]) < 1
    assert abs(wait[0] + wait[1] - idle[0]) < 1


def test_case_names_are_not_broken_within_a_word_on_a_phone(visit):
    driver = visit("everything", conftest.PHONE, view="ddp")
    broken = driver.execute_script(
        "return [...document.querySelectorAll('tbody th .whole')]"
        ".filter(word => word.getClientRects().length > 1).map(word => word.textContent)"
    )
    assert broken == []
    assert driver.find_elements(By.CSS_SELECTOR, "tbody th .whole")


def test_the_command_is_copied(visit):
    driver = visit("usual", view="run-1-about")
    button = driver.find_element(By.CSS_SELECTOR, ".copy")
    button.click()
    WebDriverWait(driver, conftest.ANSWER_LIMIT_S).until(
        lambda _: button.text in ("Copied", "Selected")
    )


def test_hostile_strings_do_nothing_even_on_hover(visit, pages):
    driver = visit("hostile")
    look_through(driver, pages, "hostile", conftest.DESKTOP)
    conftest.go(driver, conftest.addresses(driver)[1])
    chart = driver.find_element(By.CSS_SELECTOR, ".open .chart")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    for point in chart.find_elements(By.CSS_SELECTOR, ".point")[:8]:
        ActionChains(driver, duration=0).move_to_element(point).perform()
    WebDriverWait(driver, conftest.ANSWER_LIMIT_S).until(
        lambda d: d.find_elements(By.CSS_SELECTOR, ".hoverlayer text")
    )
    hover = driver.find_element(By.CSS_SELECTOR, ".hoverlayer")
    assert not hover.find_elements(By.CSS_SELECTOR, "a, img, script")
    assert driver.execute_script("return window.pwned") is None
    assert driver.get_log("browser") == []


def test_the_policy_alone_would_stop_an_injected_script(visit):
    driver = visit("usual")
    driver.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.pwned = 1';"
        "document.body.append(s);"
        "const i = document.createElement('div'); i.innerHTML = '<img src=x onerror=pwned=1>';"
        "document.body.append(i);"
    )
    assert driver.execute_script("return window.pwned") is None
    assert "Content Security Policy" in json.dumps(driver.get_log("browser"))


def test_without_scripts_the_numbers_are_still_there(visit, pages):
    driver = visit("usual")
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        driver.get(pages["usual"].as_uri())
        body = driver.find_element(By.TAG_NAME, "body").text
        clicked = driver.find_element(By.LINK_TEXT, "ddp")
        clicked.click()
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert "1.712×" in body and "The charts need scripts" in body
    assert "Highest efficiency: case ddp-25mb" in body
    assert "\nddp-1mb\n" in body and "out of memory" in body


AXE = """
const done = arguments[arguments.length - 1];
axe.run(arguments[1] || document, {resultTypes: ['violations'], ...arguments[0]}).then(
  found => done(found.violations.map(v => [v.impact, v.id, v.help, v.nodes[0].html.slice(0, 200)])),
  error => done([['critical', 'axe', String(error), '']]));
"""


@pytest.mark.parametrize(
    ("name", "scheme"), [("everything", "light"), ("everything", "dark"), ("two", "light")]
)
def test_axe_finds_nothing_at_any_level(visit, name, scheme):
    axe_core = pytest.importorskip("axe_core_python")
    driver = visit(name, scheme=scheme)
    driver.set_script_timeout(60)
    source = Path(axe_core.__file__).with_name("axe.min.js")
    driver.execute_script(source.read_text(encoding="utf-8"))
    rules = {} if scheme == "light" else {"runOnly": ["color-contrast"]}  # only colours differ
    for number, view in enumerate(conftest.addresses(driver)):
        conftest.go(driver, view)
        part = ".view.open" if number else None  # the rest of the page stays
        assert driver.execute_async_script(AXE, rules, part) == [], view


def visible_traces(driver, chart_id):
    return driver.execute_script(
        "return document.getElementById(arguments[0]).data"
        ".map((trace, i) => trace.visible === false ? -1 : i).filter(i => i >= 0)",
        chart_id,
    )


def test_a_view_is_chosen_by_keyboard_and_keeps_what_is_switched_off(visit):
    driver = visit("everything", view="ddp")
    chart = "run-1-timeline-1"
    first = visible_traces(driver, chart)
    selector = driver.find_element(By.CSS_SELECTOR, f'select[data-chart="{chart}"]')
    wait = toggle(driver, "waiting", chart)
    wait.click()
    assert len(visible_traces(driver, chart)) == len(first) - 1
    selector.send_keys(Keys.ARROW_DOWN)
    second = visible_traces(driver, chart)
    assert len(second) == len(first) - 1 and not set(second) & set(first)
    wait.click()
    assert len(visible_traces(driver, chart)) == len(first)


@pytest.mark.parametrize(
    ("begins", "says"),
    [("rank", "rank 0: computation, "), ("%{customdata", "rank 0: ddp-25mb 0, 1.00 MB")],
)
def test_a_bar_of_the_timeline_says_what_it_is(visit, begins, says):
    driver = visit("everything", view="ddp")
    driver.execute_script(
        "const chart = document.getElementById('run-1-timeline-1');"
        "chart.scrollIntoView({block: 'center'});"
        "const curve = chart.data.findIndex(t => t.hovertemplate.startsWith(arguments[0]));"
        "Plotly.Fx.hover(chart, [{curveNumber: curve, pointNumber: 0}]);",
        begins,
    )
    hover = driver.find_element(By.CSS_SELECTOR, "#run-1-timeline-1 .hoverlayer")
    WebDriverWait(driver, conftest.ANSWER_LIMIT_S).until(lambda _: hover.text)
    text = hover.get_attribute("textContent")
    assert text.startswith(says)
    assert re.search(r"\d (µs|ms) from \d[\d.]* ms$", text), text


def test_a_file_inside_the_page_is_handed_out_unpacked(visit, tmp_path):
    driver = visit("usual", view="run-1-about")
    folder = {"behavior": "allow", "downloadPath": str(tmp_path)}
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", folder)
    for link in driver.find_elements(By.CSS_SELECTOR, ".downloads a"):
        link.click()
    names = {"summary.csv", "summary.json"}
    WebDriverWait(driver, conftest.ANSWER_LIMIT_S).until(
        lambda _: {f.name for f in tmp_path.iterdir()} >= names
    )
    assert json.loads((tmp_path / "summary.json").read_text())["rows"]
    assert (tmp_path / "summary.csv").read_text().startswith("run_id,")
    assert driver.get_log("browser") == []


def test_the_axes_become_logarithmic(visit):
    driver = visit("usual", view="ddp")
    chart = "run-1-speedup-1"
    kind = "return document.getElementById(arguments[0])._fullLayout.xaxis.type"
    assert driver.execute_script(kind, chart) == "linear"
    Select(driver.find_element(By.CSS_SELECTOR, f'select[data-chart="{chart}"]')).select_by_index(1)
    assert driver.execute_script(kind, chart) == "log"


def test_a_law_is_drawn_when_it_is_asked_for(visit):
    driver = visit("everything", view="ddp")
    chart = "run-1-speedup-1"
    before = visible_traces(driver, chart)
    law = toggle(driver, "Amdahl", chart)
    assert law.get_attribute("aria-pressed") == "false"
    law.click()
    assert len(visible_traces(driver, chart)) > len(before)


def make_gallery(folder):
    """Two runs; return the address of the index."""
    from scalebench.report.page.other_pages import INDEX, Exhibit, render_gallery
    from tests.builders.shown.page_data import make_evidence
    from tests.builders.summaries import make_summary

    summary = make_summary()
    exhibits = [Exhibit(name, summary, make_evidence(summary)) for name in ("one", "another")]
    for name, text in render_gallery(exhibits).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return (folder / INDEX).as_uri()


def test_pages_of_a_gallery_are_packed_and_share_their_scripts(chromium, tmp_path):
    index = make_gallery(tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.html")) < 300_000
    chromium.get_log("browser")
    chromium.get(index)
    chromium.find_element(By.LINK_TEXT, "another").click()
    conftest.settled(chromium)
    assert chromium.title == "ddp on 1 to 4 CPU ranks · scalebench"
    conftest.go(chromium, "ddp")
    assert chromium.find_elements(By.CSS_SELECTOR, ".chart .point")
    assert chromium.get_log("browser") == []


def test_a_packed_page_says_what_else_there_is_where_it_cannot_be_unpacked(chromium, tmp_path):
    index = make_gallery(tmp_path)
    script = {"source": "delete window.DecompressionStream"}
    old = chromium.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", script)
    try:
        chromium.get(index)
        chromium.find_element(By.LINK_TEXT, "another").click()
        conftest.wait_for(chromium, "return document.getElementById('why').hidden === false")
        assert "summary.md has the verdict" in chromium.find_element(By.TAG_NAME, "body").text
    finally:
        chromium.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", old)
