"""docs/fields.md says what the records of a suite have: it is made from them."""

from pathlib import Path

import pytest

from scalebench.spec import STRATEGIES
from tests.tools.field_tables import PAGE, RECORDS, meanings, page

ROOT = Path(__file__).parents[3]


def test_the_page_is_what_the_records_say():
    written = (ROOT / PAGE).read_text()
    assert written == page(), "make it again: python -m tests.tools.field_tables"


@pytest.mark.parametrize("record", [*RECORDS, *STRATEGIES.values()])
def test_every_field_of_a_docstring_exists(record):
    stray = {name for name in meanings(record) if not hasattr(record, name)}
    assert stray <= set(record.model_fields)
