"""The index of a gallery: the question of each run, its command, and what came out."""

from scalebench.report.page.gallery import INDEX, Exhibit, render_gallery
from tests.builders.page_data import make_evidence
from tests.builders.summaries import make_row, make_summary


def index_of(*exhibits):
    return " ".join(render_gallery(exhibits)[INDEX].split())


def exhibit(summary=None, questions=None, name="a-run"):
    summary = summary or make_summary()
    return Exhibit(name, summary, make_evidence(summary), questions or {})


def test_a_run_of_one_suite_asks_its_question():
    told = index_of(exhibit(questions={"ddp": "How well does DDP scale?"}))
    assert '<a href="a-run/report.html">How well does DDP scale?</a>' in told
    assert "1 run, as they were measured" in told


def test_a_run_of_several_suites_and_one_of_an_unknown_suite_have_the_name_of_their_folder():
    two = make_summary([make_row(), make_row(suite="mine")])
    for shown in (exhibit(two, {"ddp": "Asked?", "mine": "And?"}), exhibit(questions={"no": "?"})):
        told = index_of(shown)
        assert '<a href="a-run/report.html">a-run</a>' in told
        assert "Asked?" not in told


def test_the_command_and_what_each_case_reached_are_shown():
    summary = make_summary()
    told = index_of(exhibit(summary))
    assert summary.reproduce.replace("&", "&amp;") in told
    (suite,) = exhibit(summary).answers
    assert suite.cases
    for case in suite.cases:
        assert f'<th scope="row">{case.case}</th>' in told
        assert case.result.replace(" ", "\N{NO-BREAK SPACE}") in told or case.result in told
