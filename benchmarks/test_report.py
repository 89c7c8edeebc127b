"""What a report costs: of a run of 1,000 ranks × 1,000 steps, and of a usual one.

Fresh processes; imports do not count. The page is then opened in headless Chromium, where there
is one, and asked when it answered; then views are opened, and each is asked how long it took until
it was shown and until the figures in sight were drawn.
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
CLICK_S, MEMORY_MB = 0.2, 500.0
MOST_VIEWS = 8
MARKS = ("scalebench-interactive", "scalebench-ready")
"""What the page notes: it answers; what is in sight is drawn."""

WHEN = "return arguments[0].map(name => performance.getEntriesByName(name)[0]?.startTime)"
VIEWS = """
const of = (found) => [...document.querySelectorAll(found)].map(view => view.dataset.view);
const rows = of('template.rowview');
return [...of('.view[data-view]').slice(1), ...rows.slice(-3)];
"""
OPEN = """
const [address, done] = [arguments[0], arguments[arguments.length - 1]];
const began = performance.now();
const since = () => performance.now() - began;
const root = document.documentElement;
let shown = null;
const look = () => {
  if (shown === null && root.dataset.open === address) shown = since();
  if (shown !== null && root.dataset.ready === 'true') done([shown, since()]);
  else requestAnimationFrame(look);
};
location.hash = address;
requestAnimationFrame(look);
"""


def rendered(folder: Path) -> dict[str, float]:
    """Render a run folder in a fresh process; return what that took."""
    command = [sys.executable, "-m", "benchmarks.render_once", str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    told: dict[str, float] = json.loads(done.stdout)
    return told


def opened(page: Path) -> tuple[float, float, float] | None:
    """Return the seconds until a page answers; its slowest view is shown; its figures are drawn.

    None: there is no Chromium.
    """
    from selenium import webdriver

    browser, driver = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
    if not browser.exists() or not driver.exists():
        return None
    options = webdriver.ChromeOptions()
    options.binary_location = str(browser)
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,900"):
        options.add_argument(flag)
    chromium = webdriver.Chrome(options, webdriver.ChromeService(str(driver)))
    try:
        chromium.set_script_timeout(60)
        chromium.get(page.as_uri())
        while None in (marks := chromium.execute_script(WHEN, list(MARKS))):
            time.sleep(0.05)
        time.sleep(1.0)
        views = chromium.execute_script(VIEWS)[:MOST_VIEWS]
        times = [chromium.execute_async_script(OPEN, view) for view in views]
        return marks[0] / 1e3, *(max(each) / 1e3 for each in zip(*times, strict=True))
    finally:
        chromium.quit()


def print_opened(name: str, found: tuple[float, float, float] | None, limit_s: float) -> None:
    """Print how fast a page answers, next to the targets."""
    lines = ["no Chromium here"]
    if found is not None:
        interactive_s, shown_s, drawn_s = found
        lines = [
            f"interactive {against_limit(interactive_s, limit_s)} after it was opened",
            f"a view is shown {against_limit(shown_s, CLICK_S)} after a click, the slowest",
            f"its figures in sight are drawn after {drawn_s:.2f} s, the slowest",
        ]
    print_section(f"Page of a {name} in a browser", *lines)


@pytest.mark.timeout(0)
@pytest.mark.benchmark(group="report")
@pytest.mark.parametrize(
    ("name", "limit_s", "limit_mb", "interactive_s"),
    [("1,000 ranks × 1,000 steps", 3.0, 6.0, 2.0), ("usual run", 1.0, 5.5, 1.0)],
)
def test_report(
    benchmark: BenchmarkFixture,
    tmp_path: Path,
    name: str,
    limit_s: float,
    limit_mb: float,
    interactive_s: float,
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
    print_section(
        f"Report of a {name}, medians of {ROUNDS}",
        f"render     {against_limit(found['render_s'], limit_s)}",
        f"page       {against_limit(found['page_bytes'] / 1e6, limit_mb, 'MB')}",
        f"memory     {against_limit(found['peak_bytes'] / 1e6, MEMORY_MB, 'MB')}",
    )
    print_opened(name, opened(folder / "report.html"), interactive_s)
