"""What a search's result says of its ranking."""

from scalebench.search.choice import choices
from scalebench.search.ranking import search
from scalebench.search.result import PUBLISHED_ERROR, result_of
from scalebench.search.scores import ScoredRow, Scores, scores_of
from tests.unit.search.jobs import job


def result(scores: Scores):
    known = job(4, 16)
    ranking = search(known)
    return choices(known, ranking.best), result_of(known, ranking, scores, "", (), 0.0)


def test_the_first_is_compared_with_the_second() -> None:
    best, found = result(Scores())
    assert len(best) > 1 and best[0].step_s < best[1].step_s
    assert found.why.startswith(f"{best[0].mesh_words} is ")
    assert f"faster than {best[1].mesh_words}: " in found.why
    assert [one.step_s for one in found.best] == [one.step_s for one in best]


def test_the_error_is_the_measured_one_or_else_the_published() -> None:
    _, assumed = result(Scores())
    _, measured = result(Scores(error=0.05, num_steps=3))
    assert assumed.error == PUBLISHED_ERROR and "nothing here" in assumed.error_told
    assert measured.error == 0.05 and measured.error_told.startswith("of 3 measured rows")
    assert measured.probability > assumed.probability


def test_the_margin_is_that_of_the_peak_that_was_most_above_its_prediction() -> None:
    def row(measured_bytes):
        return ScoredRow(
            case="ddp", workload="w", world_size=2, measured_s=1.0, predicted_s=1.0,
            measured_bytes=measured_bytes, predicted_bytes=1000.0,
        )  # fmt: skip

    found = scores_of([row(900), row(1200), row(1100), row(None)])
    assert found.margin is not None and round(found.margin, 9) == 0.2
    assert (found.num_peaks, found.num_steps, found.error) == (3, 4, 0.0)
    assert scores_of([row(900)]).margin == 0.0 and scores_of([row(None)]).margin is None
