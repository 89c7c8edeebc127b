"""The index of a gallery: the question of each run, its command, and what came out."""

from scalebench.records.summary import TimedCollectives
from scalebench.report.page.gallery import INDEX, TOUR, Exhibit, render_gallery
from scalebench.session.suites.files import suite_files
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
    (answer,) = exhibit(summary).answers
    suite = answer.brief
    assert suite.cases
    for case in suite.cases:
        assert f'<th scope="row">{case.case}</th>' in told
        assert case.result.replace(" ", "\N{NO-BREAK SPACE}") in told or case.result in told


def test_the_tour_goes_from_the_links_to_whole_trainings_whatever_the_folders_are_called():
    suites = {"a": "recovery", "b": "mine", "c": "ddp", "d": "mesh"}
    made = [
        exhibit(make_summary([make_row(suite=suite)]), name=name) for name, suite in suites.items()
    ]
    told = index_of(*made)
    places = [told.index(f'href="{name}/report.html"') for name in "cdab"]
    assert places == sorted(places)


def test_every_bundled_suite_has_a_place_in_the_tour():
    assert sorted(TOUR) == sorted(suite_files())


def test_a_run_of_links_alone_asks_its_question_and_says_what_was_verified():
    timed = TimedCollectives(suites=["collectives"], num_points=48, num_wrong=0, fits=[])
    summary = make_summary([], collectives=timed)
    told = index_of(exhibit(summary, {"collectives": "What do the links cost?"}))
    assert "What do the links cost?" in told
    assert "48 points, every result verified: 0 wrong elements" in told.replace("\xa0", " ")


def test_the_memory_of_each_case_stands_in_the_answer():
    (answer,) = exhibit().answers
    assert answer.memory["ddp-25mb"] in index_of(exhibit())
