"""What a test is tried with: cases, and how many examples where the profile's number is wrong."""

from typing import Any

import pytest


def examples(number: int) -> int:
    """Return this number of examples; at most the profile's, where that asks for few ("quick").

    ``@settings(max_examples=150)`` means 150 under every profile.
    """
    from hypothesis import settings  # not in the frameworks' environment, where cases are tried too

    asked, usual = settings.default.max_examples, settings.get_profile("default").max_examples
    return number if asked >= usual else min(number, asked)


def cases(names: str, *rows: Any, **given: Any) -> pytest.MarkDecorator:
    """Try a test with each of these rows of values of its arguments ``names``, "one, two"."""
    return pytest.mark.parametrize(names, rows, **given)
