"""A headless Chromium for the page, and the synthetic summaries of the unit tests."""

from pathlib import Path

import pytest

CHROMIUM = Path("/usr/bin/chromium")
CHROMEDRIVER = Path("/usr/bin/chromedriver")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--window-size=1280,900"),
)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    for needed in (CHROMIUM, CHROMEDRIVER):
        if not needed.exists():
            pytest.skip(f"{needed} is not installed (apt-get install chromium chromium-driver)")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in FLAGS:
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=str(CHROMEDRIVER))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()


PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
DESKTOP = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
ANSWER_LIMIT_S = 60.0
"""A shared machine may be ten times as slow; a page that does not answer fails all the same."""
MARKS = ".point, .js-line, .hm image, .js-fill"
"""What a chart is drawn with: marks, lines, the picture of a heat map, areas."""


def written(folder, made):
    """Write pages, each of some summaries and their page data; return where they are."""
    from scalebench.report import render_page

    for name, given in made.items():
        (folder / f"{name}.html").write_text(render_page(*given), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in made}


def load(driver, address, viewport):
    """Load a page afresh, at a size, with empty logs; return the browser once all is drawn."""
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", viewport)
    driver.get("about:blank")
    driver.get_log("browser")
    driver.get_log("performance")
    driver.get(address)
    settled(driver)
    return driver


def addresses(driver):
    """Addresses of all views, and of the first and the last row."""
    return driver.execute_script(
        "const of = (found) => [...document.querySelectorAll(found)].map(v => v.dataset.view);"
        "const rows = of('template.rowview');"
        "return [...new Set([...of('.view[data-view]'), ...rows.slice(0, 1), ...rows.slice(-1)])];"
    )


def settled(driver):
    wait_for(driver, "return document.documentElement.dataset.ready === 'true'")


def go(driver, view):
    """Open a view by its address, everything in it unfolded and drawn."""
    driver.execute_script("location.hash = arguments[0]", view)
    wait_for(driver, "return document.documentElement.dataset.open === arguments[0]", view)
    driver.execute_script(
        "document.querySelectorAll('.open .fold.closed :is(h2, h4) button')"
        ".forEach(button => button.click());"
        "document.querySelectorAll('.open .chart').forEach(chart => chart.scrollIntoView());"
        "scrollTo(0, 0)"
    )
    wait_for(driver, DRAWN)


DRAWN = f"""
const missing = [...document.querySelectorAll('.open .chart')]
  .filter(chart => !chart.querySelector('{MARKS}'));
missing[0]?.scrollIntoView({{block: 'center'}});
if (!missing.length) scrollTo(0, 0);
return missing.length === 0;
"""


def wait_for(driver, script, *arguments):
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(driver, ANSWER_LIMIT_S, 0.05).until(
        lambda d: d.execute_script(script, *arguments)
    )
