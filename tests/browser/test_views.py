"""The three levels in a real browser: what is opened by which click, and what stands there."""

import gzip
import re
import shutil
import struct
from pathlib import Path

import pytest

pytest.importorskip("selenium")

from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from tests.browser.conftest import (
    ANSWER_LIMIT_S,
    DESKTOP,
    PHONE,
    addresses,
    go,
    load,
    settled,
    wait_for,
    written,
)
from tests.examples import cases

pytestmark = pytest.mark.browser

CORE = Path(__file__).parents[1] / "golden" / "summaries-0.1" / "core-suites.show.json.gz"
SCREEN = {"width": 1400, "height": 900, "deviceScaleFactor": 1, "mobile": False}


def made():
    """Name of a page → its summary, and the page data that some of them have."""
    from scalebench.records.summary import Summary
    from tests.builders.shown.page_data import make_evidence
    from tests.builders.summaries import (
        make_missing,
        make_plain,
        make_row,
        make_summary,
        many_rows,
        predicted_row,
        traced_rows,
    )

    core = Summary.model_validate_json(gzip.decompress(CORE.read_bytes()))
    traced = [make_plain(), *(predicted_row(row) for row in traced_rows()[1:])]
    model = {
        "num_rows": 2, "mean_error": 0.021, "worst_error": -0.034,
        "worst": {"suite": "ddp", "case": "ddp-1mb", "world_size": 2},
    }  # fmt: skip
    several = core.model_copy(update={"rows": [*traced, *core.rows], "model": model})
    long = "a-case-with-a-name-of-sixty-characters-that-goes-on-and-on-x"
    assert len(long) == 60
    names = [make_plain()] + [make_row(f"{long[:-2]}{i:02d}", n) for i in range(3) for n in (1, 2)]
    failed = [
        make_missing(status="failed", reason="ValueError: <b>no</b>", world_size=n) for n in (1, 2)
    ]
    many = [
        row.model_copy(update={"suite": f"suite-{number}", "case": name})
        for number in range(13)
        for row in several.rows
        if row.suite == "ddp"
        for name in (row.case if row.strategy == "plain" else f"{row.case}-of-suite-{number}",)
    ]
    return {
        "thirteen": (several.model_copy(update={"rows": many}), None),
        "several": (several, make_evidence(several)),
        "elsewhere": (core, None),
        "failed": (make_summary(failed), None),
        "forty": (make_summary(many_rows(cases=40, sizes=(1, 2))), None),
        "names": (make_summary(names), None),
        "sizes": (make_summary(many_rows(cases=2, sizes=tuple(range(1, 65)))), None),
    }  # fmt: skip


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    found = {name: ([summary], [data]) for name, (summary, data) in made().items()}
    return written(tmp_path_factory.mktemp("views"), found)


@pytest.fixture
def visit(chromium, pages):
    def opened(name, address="", viewport=None):
        place = pages[name].as_uri() + (f"#{address}" if address else "")
        return load(chromium, place, viewport or SCREEN)

    yield opened
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", DESKTOP)


def shown(driver):
    """What a reader sees of the open view, in one line."""
    text = driver.execute_script("return document.querySelector('main').innerText")
    return " ".join(text.replace("\N{NO-BREAK SPACE}", " ").split())


def opened(driver):
    return driver.execute_script("return document.documentElement.dataset.open")


def click(driver, place):
    """Click a link by its text in the list at the side or the open view, or by a selector."""
    if place.startswith("css:"):
        (element, *_) = driver.find_elements(By.CSS_SELECTOR, place[4:])
    else:
        element = driver.execute_script(
            "return [...document.querySelectorAll('#nav a, .open a')].find(link =>"
            " link.checkVisibility() && link.innerText.trim() === arguments[0])",
            place,
        )
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    element.click()
    settled(driver)


def turn(driver, *addresses):
    """Go from view to view of the page that is there."""
    for address in addresses:
        driver.execute_script("location.hash = arguments[0]", address)
        is_there = "return !document.documentElement.dataset.open === arguments[0]"
        wait_for(driver, is_there, not address)
    settled(driver)


QUESTIONS = {
    "which case is fastest on 2 ranks, and is that certain": (
        [],
        r"ddp strong scaling, 2 CPU ranks Highest efficiency: case ddp-25mb, 85.0 % \(81.6–88.4\)\."
        r" Not certain: ddp-1mb may be as good",
    ),
    "what costs the most in fsdp at 2": (
        ["fsdp"],
        r"The largest certain loss is|No large loss is certain|No cause is named",
    ),
    "which rank is late, and how late": (
        ["ddp-25mb"],
        r"Who arrives last .* rank last in by \(median\) in a row rank 1 97 % 1\.9. ms",
    ),
    "how far off is the model": (
        [],
        r"Model predicted steps are 2\.1 % off on average; furthest −3\.4 %, ddp-1mb, N=2",
    ),
    "does compression pay here": ([], r"ompression pays"),
    "how much memory does ZeRO-1 save": (
        ["fsdp", "Memory"],
        r"Peak of the fullest rank.* ddp 1 .* zero1 1 ",
    ),
    "what should be tried next": ([], r"Try next ddp-\w+: \w+"),
    "on what machine was this": ([], r"Machine .*cores · .*torch 2"),
    "how do I repeat it": ([], r"Repeat it scalebench run"),
    "which numbers should I not trust": (
        [],
        r"Read with care other programs were running \(\d+ of \d+ rows\)",
    ),
}


def test_a_question_is_answered_within_two_clicks(visit):
    driver = visit("several")
    for question, (clicks, answer) in QUESTIONS.items():
        turn(driver, "")
        assert len(clicks) <= 2
        for place in clicks:
            click(driver, place)
        assert re.search(answer, shown(driver)), (question, shown(driver)[:3000])


def test_all_suites_are_on_the_first_screen(visit):
    driver = visit("several")
    bottoms = driver.execute_script(
        "return [...document.querySelectorAll('.suitecard')]"
        ".map(card => card.getBoundingClientRect().bottom)"
    )
    assert len(bottoms) == 4 and max(bottoms) <= SCREEN["height"]
    assert driver.find_elements(By.CSS_SELECTOR, ".js-plotly-plot") == []


def test_no_card_has_more_than_eight_lines(visit):
    driver = visit("several")
    for suite in ("ddp", "fsdp", "pipeline", "compression"):
        go(driver, suite)
        for card in driver.find_elements(By.CSS_SELECTOR, ".open .card"):
            assert driver.execute_script(LINES, card) <= 8, card.text


LINES = """
const lines = (one) => one.matches('.sentence, .advice')
  ? Math.round(one.clientHeight / parseFloat(getComputedStyle(one).lineHeight)) : 1;
return [...arguments[0].querySelectorAll('h3, .headline, .interval, .strip, .sentence, .advice')]
  .reduce((sum, one) => sum + lines(one), 0);
"""


LOADED = {"ddp": "ddp", "ddp/ddp-25mb/N%3D2": "ddp-25mb", "run-1-speedup-2": "pipeline"}
LATER = {"ddp/ddp-25mb/N=2": "ddp-25mb", "fsdp/zero1/N=1": "zero1", "run-1": "compression"}
LATER |= {"run-1-speedup": "ddp", "run-1-environment": "This run", "run-1-suite-4-memory": "fsdp"}


def test_an_address_opens_its_view_and_those_of_earlier_versions_the_nearest(visit):
    """Of a page that is loaded with it, or that is there already."""
    for address, title in (LOADED | LATER).items():
        if address in LOADED:
            driver = visit("several", address)
        else:
            turn(driver, "", address)
        assert title in driver.find_element(By.CSS_SELECTOR, ".open h1").text, address
        assert not driver.find_element(By.ID, "unknown").is_displayed()


def test_an_address_that_names_nothing_says_so_and_shows_the_overview(visit):
    driver = visit("several", "ddp/nothing/N=2")
    for address in ((), ("", "%E0%A4%A"), ("", "<b>x")):
        turn(driver, *address)
        assert "This page has nothing at" in driver.find_element(By.ID, "unknown").text
        assert driver.find_elements(By.CSS_SELECTOR, ".overview.open")
        assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_marks_bars_cells_and_lines_of_tables_open_their_row(visit):
    driver = visit("several")
    mark = driver.find_element(By.CSS_SELECTOR, '.effchart [data-row="ddp/ddp-1mb/N=2"]')
    ActionChains(driver, duration=0).move_to_element(mark).click().perform()
    wait_for(driver, "return document.documentElement.dataset.open === 'ddp/ddp-1mb/N=2'")
    go(driver, "ddp")
    cells = '.open .results tr[data-row="ddp/ddp-25mb/N=2"] td.memory'
    click(driver, f"css:{cells}")
    wait_for(driver, "return document.documentElement.dataset.open === 'ddp/ddp-25mb/N=2'")
    for chart in ("speedup-1", "budget-1", "memory-1", "predicted-steps-1"):
        go(driver, "ddp")
        if not driver.find_elements(By.ID, f"run-1-{chart}"):
            continue
        driver.execute_script(
            "const chart = document.getElementById(arguments[0]);"
            "const curve = chart.data.findIndex(t => JSON.stringify(t.customdata || '')"
            ".includes('ddp-1mb</b>, 2 CPU'));"
            "const point = chart.data[curve].customdata.findIndex(t => t[0].includes("
            "'ddp-1mb</b>, 2 CPU'));"
            "chart.emit('plotly_click', {points: [{data: chart.data[curve],"
            " customdata: chart.data[curve].customdata[point]}]});",
            f"run-1-{chart}",
        )
        wait_for(driver, "return document.documentElement.dataset.open === 'ddp/ddp-1mb/N=2'")


def test_the_view_of_a_row_shows_that_row_alone(visit):
    driver = visit("several", "ddp/ddp-1mb/N=2")
    go(driver, "ddp/ddp-1mb/N=2")
    text = shown(driver)
    assert "Of the 21.18 ms step of ddp-1mb, N=2" in text and "all_reduce" in text
    visible = driver.execute_script(
        "return [...document.querySelectorAll('.open .chart')].map(chart => [chart.dataset.source,"
        " chart.data.filter(trace => trace.visible !== false).map(trace => trace.meta)])"
    )
    assert len(visible) >= 3
    for source, metas in visible:
        assert set(metas) == {"ddp-1mb, N=2"}, source
    button = driver.find_element(By.CSS_SELECTOR, ".open .raw")
    button.click()
    raw = driver.find_element(By.CSS_SELECTOR, ".open .rawtext")
    WebDriverWait(driver, ANSWER_LIMIT_S).until(lambda _: raw.text)
    assert '"case": "ddp-1mb"' in raw.text and '"world_size": 2' in raw.text
    assert driver.get_log("browser") == []


def test_only_the_open_view_is_drawn_and_a_closed_row_leaves_nothing(visit):
    driver = visit("several", "ddp")
    drawn = "return [...document.querySelectorAll('.js-plotly-plot')].map(c => c.id)"
    assert all(re.fullmatch(r"run-1-[\w-]+-1", one) for one in driver.execute_script(drawn))
    go(driver, "ddp/ddp-1mb/N=2")
    assert any("-row-" in one for one in driver.execute_script(drawn))
    go(driver, "")
    assert not any("-row-" in one for one in driver.execute_script(drawn))


def test_rows_are_found_by_case_operation_and_mark(visit):
    driver = visit("several")
    query = driver.find_element(By.ID, "query")
    for words, first in (("zero1 n=2", "zero1, N=2"), ("all_reduce ddp-1mb", "ddp-1mb, N=1")):
        query.send_keys(words)
        found = driver.find_elements(By.CSS_SELECTOR, "#found a")
        assert found[0].text.startswith(first)
        query.clear()
    query.send_keys("foreign load zero1")
    assert "foreign load" in driver.find_element(By.CSS_SELECTOR, "#found a").text
    query.send_keys(Keys.ENTER)
    wait_for(driver, "return document.documentElement.dataset.open.startsWith('fsdp/zero1/')")
    driver.find_element(By.ID, "query").send_keys("no such thing")
    assert driver.find_element(By.ID, "nothing").text == "No row has all these words."


def test_the_keyboard_goes_through_the_views(visit):
    driver = visit("several")
    body = driver.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.ARROW_RIGHT)
    wait_for(driver, "return document.documentElement.dataset.open === 'ddp'")
    body.send_keys(Keys.ESCAPE)
    wait_for(driver, "return document.documentElement.dataset.open === ''")
    body.send_keys("/")
    assert driver.switch_to.active_element.get_attribute("id") == "query"
    driver.switch_to.active_element.send_keys("zero1 n=2", Keys.ARROW_DOWN, Keys.ENTER)
    wait_for(driver, "return document.documentElement.dataset.open === 'fsdp/zero1/N=2'")
    driver.find_element(By.CSS_SELECTOR, ".open h1").send_keys(Keys.ESCAPE)
    wait_for(driver, "return document.documentElement.dataset.open === 'fsdp'")


def test_a_word_is_explained_on_hover_on_focus_and_at_a_tap(visit):
    driver = visit("several", "ddp")
    term = driver.find_element(By.CSS_SELECTOR, '.open a.term[href="#word-peak-mem"]')
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", term)
    tip = driver.find_element(By.ID, "tip")
    ActionChains(driver, duration=0).move_to_element(term).perform()
    assert tip.text.startswith("Largest over ranks.")
    ActionChains(driver, duration=0).send_keys(Keys.ESCAPE).perform()
    assert not tip.is_displayed()
    term.click()
    assert tip.is_displayed() and opened(driver) == "ddp"
    frame = tip.rect
    assert frame["x"] >= 0 and frame["x"] + frame["width"] <= SCREEN["width"]


def test_a_phone_has_a_menu(visit):
    driver = visit("several", viewport=PHONE)
    nav, menu = driver.find_element(By.ID, "nav"), driver.find_element(By.ID, "menu")
    assert not nav.is_displayed()
    menu.click()
    assert nav.is_displayed()
    click(driver, "fsdp")
    wait_for(driver, "return document.documentElement.dataset.open === 'fsdp'")
    assert not nav.is_displayed()


OUTSIDE = """
const box = one => one.getBoundingClientRect();
const wrong = [];
for (const card of document.querySelectorAll('.open .suitecard')) {
  for (const name of card.querySelectorAll('.ranked li > :is(a, span):not(.value, .interval)'))
    if (box(name).width < 60 || name.scrollWidth > name.clientWidth + 1)
      wrong.push(name.textContent);
  for (const value of card.querySelectorAll('.ranked .value'))
    if (box(value).right > box(card).right) wrong.push(value.textContent);
}
const above = [...document.querySelectorAll('.open .identity > :is(p.quiet, .notice)')];
if (box(document.querySelector('.open .take')).top + 1 < Math.max(...above.map(p => box(p).bottom)))
  wrong.push('buttons');
return wrong;
"""


@cases("name", "names", "several", "thirteen")
def test_a_phone_shows_case_names_percentages_and_buttons_in_their_places(visit, name):
    assert visit(name, viewport=PHONE).execute_script(OUTSIDE) == []


def test_thirteen_suites_fit_one_screen(visit):
    driver = visit("thirteen")
    board = driver.find_element(By.CSS_SELECTOR, ".open .board")
    lines = board.find_elements(By.CSS_SELECTOR, ".suitecard")
    assert len(lines) == 13
    assert board.rect["y"] + board.rect["height"] <= SCREEN["height"]
    there = "return arguments[0].every(line => line.querySelector(arguments[1]).checkVisibility())"
    for part in ("h2 a", ".effchart", ".ranked .value", ".verdict", ".brief .next dd"):
        assert driver.execute_script(there, lines, part), part
    first = driver.find_elements(By.CSS_SELECTOR, ".open .tryfirst li")
    assert first and "up to " in first[0].text and " ms step" in first[0].text


def test_paper_has_overview_and_suites_and_a_row_when_it_is_open(visit):
    driver = visit("several")
    displayed = (
        "return [...document.querySelectorAll('.view')]"
        ".filter(view => getComputedStyle(view).display !== 'none').length"
    )
    try:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        assert driver.execute_script(displayed) >= 6
        driver.execute_script("dispatchEvent(new Event('beforeprint'))")
        wait_for(driver, "return typeof Plotly !== 'undefined'")
        driver.execute_script("dispatchEvent(new Event('beforeprint'))")
        charts, drawn, told = driver.execute_script(
            "const shown = (e) => getComputedStyle(e).display !== 'none';"
            "const all = [...document.querySelectorAll('.chart')]"
            "  .filter(chart => shown(chart.closest('figure')));"
            "const told = [...document.querySelectorAll('section.fold.closed > .inbrief')];"
            "return [all.filter(chart => !chart.closest('.fold.closed')).length,"
            " document.querySelectorAll('.js-plotly-plot').length,"
            " told.map(line => getComputedStyle(line).display !== 'none')]"
        )
        assert drawn == charts > 0
        figures, tops = driver.execute_script(
            "const of = (e, what) => [...e.querySelectorAll(what)];"
            "const shown = (e) => e.getClientRects().length > 0;"
            "const suites = of(document, '.suiteview');"
            "return [suites.flatMap(s => of(s, '.tables:not(.fold)'))"
            "  .map(s => of(s, 'figure').filter(shown).length),"
            " suites.map(s => of(s, '.half').map(h => h.getBoundingClientRect().top))]"
        )
        assert max(figures) == 1, "of a section that nobody opened, paper has the first figure"
        assert all(len(set(pair)) == 1 for pair in tops if len(pair) == 2), "side by side"
        assert told and all(told)
        go(driver, "ddp/ddp-1mb/N=2")
        assert driver.execute_script(displayed) == 1
    finally:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


@cases(
    "name, viewport",
    *((name, PHONE) for name in ("elsewhere", "failed", "forty", "names", "sizes")),
    *((name, SCREEN) for name in ("forty", "sizes")),
)
def test_bad_input_fits_the_screen_and_every_level_opens(visit, name, viewport):
    driver = visit(name, viewport=viewport)
    views = addresses(driver)
    assert len(views) >= 4
    for address in views:
        driver.execute_script("location.hash = arguments[0]", address)
        wait_for(driver, "return document.documentElement.dataset.open === arguments[0]", address)
        settled(driver)
        width = driver.execute_script("return document.documentElement.scrollWidth")
        assert width <= viewport["width"], address
        assert len(shown(driver)) > 40
    assert driver.get_log("browser") == []


def test_the_overview_is_copied_as_markdown(visit):
    driver = visit("several")
    text = driver.execute_script("return document.getElementById('run-1-markdown').textContent")
    assert "**ddp** (strong scaling, 2 CPU ranks): Highest efficiency: case ddp-25mb" in text
    assert "- **Try next**: " in text and "- Machine: " in text
    button = driver.find_element(By.CSS_SELECTOR, ".open .taketext")
    button.click()
    WebDriverWait(driver, ANSWER_LIMIT_S).until(lambda _: button.text in ("Copied", "Saved"))


def test_the_overview_becomes_a_picture(visit):
    driver = visit("several")
    driver.set_script_timeout(30)
    size = driver.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        "navigator.clipboard.write = async (items) => {"
        "  const picture = await createImageBitmap(await items[0].getType('image/png'));"
        "  const canvas = document.createElement('canvas');"
        "  [canvas.width, canvas.height] = [picture.width, picture.height];"
        "  const drawn = canvas.getContext('2d'); drawn.drawImage(picture, 0, 0);"
        "  const data = drawn.getImageData(0, 0, picture.width, picture.height).data;"
        "  const colours = new Set();"
        "  for (let i = 0; i < data.length; i += 404) colours.add(data.slice(i, i + 3).join());"
        "  done([picture.width, picture.height, colours.size]);"
        "};"
        "document.querySelector('.open .takepicture').click();"
    )
    assert size[0] > 1500 and size[1] > 1000 and size[2] > 20
    assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_the_overview_is_drawn_as_a_file(pages, tmp_path):
    from scalebench.session.storing.finish import BROWSERS, draw_overview

    if not any(map(shutil.which, BROWSERS)):
        pytest.skip("there is no Chromium on the path")
    draw_overview(pages["several"], tmp_path / "overview.png")
    drawn = (tmp_path / "overview.png").read_bytes()
    width, height = struct.unpack(">II", drawn[16:24])
    assert drawn[1:4] == b"PNG" and width == 1400 and 800 < height < 1100
    assert len(drawn) > 60_000
