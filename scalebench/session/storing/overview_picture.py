"""The overview of a page as a picture, drawn by a browser that this machine has."""

import os
import shutil
import subprocess
from pathlib import Path

from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.records.storage.folder import Scratch

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDTH = 1400
ABOVE, EACH = 270, 330
"""Pixels of height: without suites, and for each line of two suites."""

PATIENCE_S = 120.0


def draw_overview(page: Path, picture: Path) -> None:
    """Write the overview of a page as PNG.

    Raises:
        UsageError: The name does not end in ``.png``, or its folder does not exist.
        EnvironmentUnfit: There is no browser, or it made no picture.
    """
    if picture.suffix != ".png":
        raise UsageError(
            f"--image makes a PNG, not {picture.name!r}. Name a file that ends in .png."
        )
    if not picture.parent.is_dir():
        raise UsageError(
            f"There is no folder {picture.parent} for --image. Make it, or name another."
        )
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise EnvironmentUnfit(
            f"--image needs Chromium or Chrome, and none of {', '.join(BROWSERS)} is on the path."
            ' Install one, or open the page and press "Copy picture".'
        )
    num_suites = page.read_text("utf-8").count('<section class="suitecard"')
    height = ABOVE + EACH * -(-max(num_suites, 1) // 2)
    with Scratch() as scratch:
        drawn = scratch / "overview.png"
        command = [
            browser, "--headless=new", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
            f"--user-data-dir={scratch}/profile", f"--window-size={WIDTH},{height}",
            f"--screenshot={drawn}", f"{page.resolve().as_uri()}?picture",
        ]  # fmt: skip
        if os.geteuid() == 0:
            command.insert(1, "--no-sandbox")  # Chromium refuses to start as root with one
        _run(command)
        if not drawn.is_file():
            raise EnvironmentUnfit(f"{browser} made no picture of {page}. Open the page instead.")
        shutil.copyfile(drawn, picture)


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentUnfit(f"{command[0]} did not draw the overview: {error}.") from error
