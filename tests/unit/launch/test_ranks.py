"""Which ranks the others wait for, when a launch is still running at its limit."""

import pytest

from scalebench.launch.ranks import who_is_missing


@pytest.mark.parametrize(
    ("late", "called", "missing"),
    [
        ([0, 1], {0: 42, 1: 41}, [1]),
        ([0, 1, 2], {0: 42, 1: 41, 2: 41}, [1, 2]),
        ([0, 1], {0: 42}, [1]),  # rank 1 is stopped and says nothing
        ([0, 1], {0: 42, 1: 42}, []),  # all are there: nobody can tell
        ([0, 1], {}, []),
        ([0], {0: 3}, []),
    ],
)
def test_the_rank_that_called_fewer_collectives_is_missing(
    late: list[int], called: dict[int, int], missing: list[int]
) -> None:
    assert who_is_missing(late, called) == missing
