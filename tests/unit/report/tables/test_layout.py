"""Tables are as wide as their columns need, and no number loses a digit."""

import pytest

from scalebench.report.tables.layout import FOLDED, RANKS, SHRINKING_CASE, Column, Screen, without
from tests.builders.summaries import make_row

NUMBERS = ("123456789", "987654321", "192837465")
COLUMNS = (
    SHRINKING_CASE,
    RANKS,
    *(Column(f"number {place}", lambda _, text=text: text) for place, text in enumerate(NUMBERS)),
)
NARROWING = (*without("number 2", "number 1"), *FOLDED)


@pytest.mark.parametrize("case", ["a", "a-name", "a-name-of-some-length"])
@pytest.mark.parametrize("width", range(40, 80))
def test_a_number_is_whole_or_its_column_is_left_out(case, width):
    screen = Screen(width)
    columns = screen.table(COLUMNS, [make_row(case)], NARROWING)
    text = screen.text()
    for column, number in zip(COLUMNS[2:], NUMBERS, strict=True):
        assert (number in text) is (column in columns)
    assert max(map(len, text.splitlines())) <= width
