from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from scalebench.records.paths import RunPaths
from tests.builders.runs import make_cell

RUN = RunPaths(Path("/runs/one"))


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "../x", "a/b", "/etc/passwd", "a/../b", "a..b", "..a", ".hidden", "-x"),
        *("a\\b", "a b", "a\0b", "a\nb", "a\n", "\na", "ä", "a:b", "a*", "~", "$HOME"),
    ],
)
@pytest.mark.parametrize("where", [RUN.cell, RUN.logs])
def test_a_name_that_could_lead_elsewhere_is_refused(where, name):
    with pytest.raises(ValueError, match="not a plain file name"):
        where(name)


NAMES = st.text("a0._-", min_size=1, max_size=4) | st.just("x" * 64)


@given(NAMES, NAMES)
def test_every_name_that_a_suite_may_use_can_be_stored(suite, case):
    try:
        cell_id = make_cell(suite=suite, case=case).id
    except ValidationError:
        return
    assert RUN.cell(cell_id).parent == RUN.cells
    assert len(RUN.cell(cell_id).name) <= 255
