"""What `scalebench report --image` says where it cannot draw."""

import pytest

from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.session.storing import overview_picture
from scalebench.session.storing.overview_picture import draw_overview


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("<p>a page</p>", encoding="utf-8")
    return path


def test_without_a_browser_one_line_says_what_is_needed(page, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EnvironmentUnfit, match=r"needs Chromium or Chrome.*Install one"):
        draw_overview(page, page.with_name("a.png"))


def test_a_browser_that_draws_nothing_is_named(page, monkeypatch):
    monkeypatch.setattr(overview_picture.shutil, "which", lambda name: "/bin/true")
    with pytest.raises(EnvironmentUnfit, match="/bin/true made no picture"):
        draw_overview(page, page.with_name("a.png"))


@pytest.mark.parametrize(
    ("name", "told"), [("a.jpg", "ends in .png"), ("nowhere/a.png", "no folder")]
)
def test_a_picture_that_cannot_be_written_is_refused(page, name, told):
    with pytest.raises(UsageError, match=told):
        draw_overview(page, page.parent / name)
