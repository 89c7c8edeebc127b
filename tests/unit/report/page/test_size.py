"""A page is small enough to send: one suite, and all that are bundled, with plotly inside."""

from pathlib import Path
from statistics import mean

import pytest

from scalebench.analysis.page_data import gather
from scalebench.analysis.run import load_run
from scalebench.analysis.summarise import summarise
from scalebench.report.page.offline import packed, plotly_script
from scalebench.report.page.page import render_page
from scalebench.session.suites.files import suite_files
from tests.builders.summaries import make_summary

GALLERY = Path(__file__).parents[4] / "reports/gallery"
RECORDED = ("asynchronous-2-cores", "context-2-cores", "ddp-8-virtual-hosts")
"""The largest page of the gallery, the smallest, and one between them."""

ONE_SUITE_BYTES = 5_500_000
ALL_SUITES_BYTES = 8_000_000


def page_bytes(name=None):
    """The page of a recorded run, without plotly; without a run what every page has."""
    if name is None:
        return len(render_page([make_summary([])], [None], plotly="beside.js").encode())
    run = load_run(GALLERY / name)
    summary = summarise(run)
    page = render_page([summary], [gather(run, summary)], plotly="beside.js")
    return len(page.encode())


@pytest.fixture(scope="module")
def sizes():
    return [page_bytes(name) for name in RECORDED]


def test_the_page_of_one_suite_can_be_sent(sizes):
    assert len(packed(plotly_script())) + max(sizes) < ONE_SUITE_BYTES


def test_the_page_of_all_bundled_suites_can_be_sent(sizes):
    """Suites share style, scripts and plotly; each adds what its own page has beyond these."""
    shared = page_bytes()
    of_a_suite = mean(size - shared for size in sizes)
    bundled = len(suite_files())
    assert bundled >= 13
    assert len(packed(plotly_script())) + shared + bundled * of_a_suite < ALL_SUITES_BYTES
