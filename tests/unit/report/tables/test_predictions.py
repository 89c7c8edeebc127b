"""The table of the cost model has the columns in which something stands."""

import pytest

from scalebench.report import render_markdown, render_table
from scalebench.report.tables import predictions
from tests.builders.summaries import make_prediction, make_row, make_summary


def rows(left_out):
    """A predicted row, whose N smaller ones predict with this error; None: they do not."""
    told = make_prediction()
    told = told.model_copy(
        update={"left_out": told.left_out.model_copy(update={"prediction_error": left_out})}
    )
    return [make_row(predicted_step_s=0.02, prediction_error=0.01, prediction=told)]


@pytest.mark.parametrize(("left_out", "shown"), [(None, False), (-0.016, True)])
def test_from_smaller_n_is_shown_only_where_there_is_a_number(left_out, shown):
    summary = make_summary(rows(left_out))
    assert (predictions.COLUMNS[-1] in predictions.columns_of(summary.rows)) is shown
    for text in (render_table(summary, 120, verbose=True), render_markdown(summary)):
        assert predictions.COLUMNS[1].name in text and "+1.0 %" in text
        assert ("from smaller N" in text) is shown
        assert ("−1.6 %" in text) is shown
