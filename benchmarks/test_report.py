"""What a report costs: a run of 1,000 ranks × 1,000 steps, and a usual one.

Fresh processes; imports do not count. The page is then opened in headless Chromium, where there
is one, and asked when its last figure was drawn.
"""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.large_run import write_large_run
from benchmarks.verdict import against_limit, print_section

ROUNDS = 7
USUAL = Path(__file__).parents[1] / "reports" / "gallery" / "ddp-2-cores"
INTERACTIVE_S = 2.0
MARKS = ("scalebench-interactive", "scalebench-ready")
"""What the page notes: its first figure is drawn and it answers; all figures are drawn."""

WHEN = "return arguments[0].map(name => performance.getEntriesByName(name)[0]?.startTime)"


def rendered(folder: Path) -> dict[str, float]:
    """Render a run folder in a fresh process; return what that took."""
    command = [sys.executable, "-m", "benchmarks.render_once", str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    told: dict[str, float] = json.loads(done.stdout)
    return told


def opened_s(page: Path) -> tuple[float, float] | None:
    """Return when a page was interactive and when it was drawn, after it was opened.

    Returns:
        None: there is no Chromium.
    """
    from selenium import webdriver

    browser, driver = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
    if not browser.exists() or not driver.exists():
        return None
    options = webdriver.ChromeOptions()
    options.binary_location = str(browser)
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,900"):
        options.add_argument(flag)
    chromium = webdriver.Chrome(options, webdriver.ChromeService(str(driver)))
    try:
        chromium.get(page.as_uri())
        chromium.set_script_timeout(60)
        while None in (marks := chromium.execute_script(WHEN, list(MARKS))):
            time.sleep(0.05)
        return float(marks[0]) / 1e3, float(marks[1]) / 1e3
    finally:
        chromium.quit()


@pytest.mark.timeout(0)
@pytest.mark.benchmark(group="report")
@pytest.mark.parametrize(
    ("name", "limit_s", "limit_mb", "limit_memory_mb"),
    [("1,000 ranks × 1,000 steps", 3.0, 6.0, 500.0), ("usual run", 1.0, 5.5, 500.0)],
)
def test_report(
    benchmark: BenchmarkFixture,
    tmp_path: Path,
    name: str,
    limit_s: float,
    limit_mb: float,
    limit_memory_mb: float,
) -> None:
    """Render in fresh processes and print the medians beside their targets."""
    folder = tmp_path / "run"
    if name == "usual run":
        shutil.copytree(USUAL, folder)
    else:
        write_large_run(folder)
    each: list[dict[str, float]] = []
    benchmark.pedantic(lambda: each.append(rendered(folder)), rounds=ROUNDS)
    found = {key: median(one[key] for one in each) for key in each[0]}
    benchmark.extra_info.update(found)
    opened = opened_s(folder / "report.html")
    print_section(
        f"Report of a {name}, medians of {ROUNDS}",
        f"render     {against_limit(found['render_s'], limit_s)}"
        f" (reading the files {found['load_s']:.2f} s of it)",
        f"page       {against_limit(found['page_bytes'] / 1e6, limit_mb, 'MB')}",
        f"memory     {against_limit(found['peak_bytes'] / 1e6, limit_memory_mb, 'MB')}",
        "interactive: no Chromium here"
        if opened is None
        else f"interactive {against_limit(opened[0], INTERACTIVE_S)} after it was opened;"
        f" all figures drawn at {opened[1]:.2f} s",
    )
