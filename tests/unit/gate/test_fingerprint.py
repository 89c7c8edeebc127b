"""What two runs say of their machines where that does not forbid to compare them."""

import pytest

from scalebench.gate.fingerprint import notable


@pytest.mark.parametrize("nothing", [{}, {"A": None}, {"A": []}])
def test_a_variable_that_one_run_did_not_have_was_not_set(nothing):
    had, had_not = {"variables": {"A": "1"}}, {"variables": nothing}
    assert notable(had, had_not) == ["A was 1 and is not set"]
    assert notable(had_not, had) == ["A was not set and is 1"]


def test_what_is_listed_more_than_once_is_counted():
    assert notable({"host": ["a", "a", "b"]}, {"host": ["a"]}) == ["host was 2 x a, b and is a"]


def test_equal_runs_have_nothing_to_tell():
    same = {"variables": {"A": "1"}, "host": "h", "os": "o", "python": "3.11"}
    assert notable(same, dict(same)) == []
    assert notable(same, {**same, "python": "3.12"}) == ["python was 3.11 and is 3.12"]
