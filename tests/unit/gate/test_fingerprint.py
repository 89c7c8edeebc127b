"""What two runs say of their machines where that does not forbid to compare them."""

import pytest

from scalebench.gate.result import Mismatch
from scalebench.gate.results import environment_mismatches, notable, row_mismatches
from scalebench.records.summary import Row
from tests.builders.summaries import make_row


@pytest.mark.parametrize("nothing", [{}, {"A": None}, {"A": []}])
def test_a_variable_that_one_run_did_not_have_was_not_set(nothing):
    had, had_not = {"variables": {"A": "1"}}, {"variables": nothing}
    assert notable(had, had_not) == ["A was 1 and is not set"]
    assert notable(had_not, had) == ["A was not set and is 1"]


def test_what_differs_in_the_environment_and_whether_it_is_allowed():
    base = {"torch": "2.1", "cores": 4, "devices": [{"name": "A"}, {"name": "A"}, {"name": "B"}]}
    new = {"torch": "2.2", "cores": 4, "devices": [{"name": "A"}], "host": "other"}
    assert environment_mismatches(base, new, ["torch"]) == [
        Mismatch("devices", "2 x A, B", "A"),
        Mismatch("torch", "2.1", "2.2", allowed=True),
    ]
    assert environment_mismatches(base, dict(base), []) == []
    assert environment_mismatches(base, {**base, "devices": ["A", "A", "B"]}, []) == []
    (found,) = environment_mismatches({"devices": "x"}, {"devices": [{"name": "A"}]}, [])
    assert (found.base, found.new, found.allowed) == ("", "A", False)


def test_a_row_whose_ranks_were_pinned_is_not_compared_with_one_whose_ranks_were_not():
    """Rows of before the option were pinned, and say nothing of it."""
    old = Row.model_validate({k: v for k, v in make_row().model_dump().items() if k != "pinned"})
    left = make_row().model_copy(update={"pinned": False})
    assert row_mismatches(old, make_row(), []) == []
    assert row_mismatches(old, left, []) == [
        Mismatch("pinned", "True", "False", where="ddp-25mb, N=2")
    ]
