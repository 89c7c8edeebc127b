"""Tables are as wide as their columns need, and no number loses a digit."""

import pytest

from scalebench.report.tables.layout import (
    FOLDED,
    RANKS,
    SHRINKING_CASE,
    Column,
    fit,
    printed,
    table,
    without,
)
from tests.builders.summaries import make_row

NUMBERS = ("123456789", "987654321", "192837465")
COLUMNS = (
    SHRINKING_CASE,
    RANKS,
    *(Column(f"number {place}", lambda _, text=text: text) for place, text in enumerate(NUMBERS)),
)
NARROWING = (*without("number 2", "number 1"), *FOLDED)


@pytest.mark.parametrize("case", ["a", "a-name", "a-name-of-some-length"])
@pytest.mark.parametrize("width", range(28, 80))
def test_a_number_is_whole_or_its_column_is_left_out(case, width):
    rows = [make_row(case)]
    columns = fit(COLUMNS, rows, width, False, NARROWING)
    text = printed([table(columns, rows, False)], width, False, False)
    for column, number in zip(COLUMNS[2:], NUMBERS, strict=True):
        assert (number in text) is (column in columns)
    assert max(map(len, text.splitlines())) <= width
