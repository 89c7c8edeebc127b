"""The index of a gallery: the question of each run, its command, and what came out."""

from scalebench.report.page.gallery import INDEX, TOUR, Exhibit, render_gallery
from scalebench.session.suites.files import suite_files
from tests.builders.shown.page_data import make_evidence
from tests.builders.summaries import make_summary


def index_of(*exhibits):
    return " ".join(render_gallery(exhibits)[INDEX].split())


def exhibit(summary=None, questions=None, name="a-run"):
    summary = summary or make_summary()
    return Exhibit(name, summary, make_evidence(summary), questions or {})


def test_the_command_and_what_each_case_reached_are_shown():
    summary = make_summary()
    told = index_of(exhibit(summary))
    assert summary.reproduce.replace("&", "&amp;") in told
    (answer,) = exhibit(summary).answers
    suite = answer.suite
    assert suite.cases
    for case in suite.cases:
        assert f'<th scope="row">{case.name}</th>' in told
        assert case.result.replace(" ", "\N{NO-BREAK SPACE}") in told or case.result in told


def test_every_bundled_suite_has_a_place_in_the_tour():
    assert sorted(TOUR) == sorted(suite_files())
