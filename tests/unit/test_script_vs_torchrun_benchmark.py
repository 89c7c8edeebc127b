"""The benchmark of one script under torchrun and under scalebench tells the two apart."""

import pytest

from benchmarks.paired import Difference
from benchmarks.script_vs_torchrun import is_as_long


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-0.03, 0.16, True),
        (0.01, 0.10, True),  # the marks alone may be the difference
        (0.03, 0.10, False),
        (-0.45, -0.35, False),  # pinned: it has to look wrong, not good
    ],
)
def test_a_step_that_is_longer_or_shorter_fails(low, high, expected):
    assert is_as_long(Difference((low + high) / 2, low, high, 20), 0.02) is expected
