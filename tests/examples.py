"""How many examples a property is tried with, where the profile's number is not the right one."""

from hypothesis import settings

USUAL = settings.get_profile("default").max_examples


def examples(number: int) -> int:
    """Return this number of examples; at most the profile's, where that asks for few ("quick").

    ``@settings(max_examples=150)`` means 150 under every profile.
    """
    asked = settings.default.max_examples
    return number if asked >= USUAL else min(number, asked)
