"""How many ranks would be enough: doubled until a configuration fits."""

from types import SimpleNamespace

import numpy as np
import pytest

from scalebench.costmodel.search import smallest
from scalebench.costmodel.search.job import Job
from scalebench.costmodel.search.memory import memory_bytes
from scalebench.costmodel.search.smallest import ranks_that_fit
from scalebench.costmodel.search.space import candidates, meshes
from scalebench.errors import UsageError
from tests.unit.costmodel.search.jobs import job


def least_bytes(of: Job) -> float:
    return min(memory_bytes(of, some).min() for some in candidates(of, meshes(of)))


@pytest.mark.parametrize("times", [2, 4])
def test_the_first_number_of_ranks_on_which_something_fits(times: int) -> None:
    enough = int(least_bytes(job(2 * times, 16)))
    assert ranks_that_fit(job(2, 16, memory_limit_bytes=enough + 1)) == 2 * times


@pytest.mark.parametrize(
    ("needed", "expected"), [(3, 6), (6, 6), (7, 12), (96, 96), (97, 192), (192, 192), (193, None)]
)
def test_ranks_are_doubled_from_twice_to_64_times(
    monkeypatch: pytest.MonkeyPatch, needed: int, expected: int | None
) -> None:
    """Of three ranks, and the second chunk of the space fits where there are enough."""
    monkeypatch.setattr(smallest, "meshes", lambda of: of.world_size)
    monkeypatch.setattr(smallest, "candidates", lambda of, found: [(found, False), (found, True)])
    monkeypatch.setattr(smallest, "memory_bytes", lambda of, some: some)
    monkeypatch.setattr(
        smallest, "fits", lambda of, some: np.array([False, some[1] and some[0] >= needed])
    )
    assert ranks_that_fit(job(3)) == expected


def test_where_no_mesh_has_so_many_ranks_none_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    def meshes_up_to_twelve(of: Job) -> SimpleNamespace:
        if of.world_size > 12:
            raise UsageError("no mesh")
        return SimpleNamespace()

    monkeypatch.setattr(smallest, "meshes", meshes_up_to_twelve)
    monkeypatch.setattr(smallest, "candidates", lambda of, found: [])
    assert ranks_that_fit(job(3)) is None
