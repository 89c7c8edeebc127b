"""The search is exact: it finds what looking at every configuration finds."""

import functools
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebench.errors import UsageError
from scalebench.search.choice import choice_at
from scalebench.search.job import Job
from scalebench.search.prediction.links import NominalLinks
from scalebench.search.prediction.memory import fits, memory_bytes
from scalebench.search.prediction.step import bound_s, step_parts
from scalebench.search.ranking import CLOSE, Ranking, first_to_try, search
from scalebench.search.run import Trainable
from scalebench.search.space import Candidates, Floats, candidates, joined, meshes, refused_meshes
from scalebench.search.strategies import strategy_of
from tests.examples import cases
from tests.unit.search.jobs import ROUTED, SMALL, TWO_LEVELS, job

JOBS = {
    "dense": job(),
    "routed": job(model=ROUTED),
    "on gpus": job(device="cuda"),
    "little memory": job(memory_limit_bytes=40_000_000, margin=0.2),
    "sixteen": job(16, 16),
    "corrected": job(corrected=lambda _, of: np.exp(0.4 * np.sin(3 * of.tensor + of.pipeline))),
}


@dataclass(frozen=True)
class Whole:
    """Every configuration of a job, without a search."""

    every: Candidates
    memory: Floats
    steps: Floats


def whole_space(of: Job) -> Candidates:
    return joined(list(candidates(of, meshes(of))))


@functools.cache
def whole(name: str) -> Whole:
    every = whole_space(JOBS[name])
    return Whole(every, memory_bytes(JOBS[name], every), step_parts(JOBS[name], every).step_s)


@functools.cache
def ten_best(name: str) -> Ranking:
    return search(JOBS[name], wanted=10)


def by_hand(name: str, wanted: int) -> tuple[list[float], int]:
    """Return the best steps and how many fit, from looking at everything."""
    of, every, memory, steps = JOBS[name], whole(name).every, whole(name).memory, whole(name).steps
    rows = [(float(steps[i]), ways(every, i)) for i in np.flatnonzero(fits(of, memory))]
    best: dict[tuple[int, ...], float] = {}
    for step, way in sorted(rows):
        best.setdefault(way, step)
    return sorted(best.values())[:wanted], len(rows)


def ways(of: Candidates, i: int) -> tuple[int, ...]:
    columns = (of.tensor, of.context, of.expert, of.shard, of.data, of.pipeline, of.zero)
    return tuple(int(column[i]) for column in columns)


@cases("name", *JOBS)
def test_the_best_and_the_front_are_those_of_the_whole_space(name: str) -> None:
    found = ten_best(name)
    best, num_fitting = by_hand(name, 10)
    assert found.num_candidates == len(whole(name).every)
    assert found.num_fitting == num_fitting
    assert found.best.step_s.tolist() == best
    assert found.num_evaluated < num_fitting, "bounds have saved nothing"


@settings(max_examples=12)
@given(
    batch=st.sampled_from([8, 16, 24]),
    world_size=st.sampled_from([2, 4, 6, 8]),
    routed=st.booleans(),
    on_gpu=st.booleans(),
    faster=st.floats(0.01, 100),
)
def test_no_bound_is_above_the_step(
    batch: int, world_size: int, routed: bool, on_gpu: bool, faster: float
) -> None:
    links = NominalLinks(TWO_LEVELS.faster(faster), "")
    of = job(world_size, batch * world_size, model=ROUTED if routed else SMALL, links=links,
             device="cuda" if on_gpu else "cpu")  # fmt: skip
    every = whole_space(of)
    steps = step_parts(of, every).step_s
    assert (bound_s(of, every) <= steps * (1 + 1e-12)).all()
    assert np.isfinite(steps).all() and (steps > 0).all()


@settings(max_examples=12)
@given(factor=st.floats(1, 50), world_size=st.sampled_from([4, 8]), on_gpu=st.booleans())
def test_a_faster_link_makes_the_best_no_slower(
    factor: float, world_size: int, on_gpu: bool
) -> None:
    of = job(world_size, device="cuda" if on_gpu else "cpu")
    faster = replace(of, links=NominalLinks(TWO_LEVELS.faster(factor), ""))
    assert search(faster, 1).best.step_s[0] <= search(of, 1).best.step_s[0] * (1 + 1e-12)


def trained(of: Job, every: Candidates) -> list[bool]:
    """Ask for the strategy of each configuration."""
    asked = (choice_at(every, i) for i in range(len(every)))
    job_of = (of.device, of.world_size, of.batch, of.model.experts)
    return [not isinstance(strategy_of(one, *job_of), str) for one in asked]


@cases(
    "of",
    *(job(4, 8), job(8, 24, device="cuda"), job(6, 60), job(8, 8, model=ROUTED)),
    ids=["four", "on gpus", "odd cuts", "routed"],
)
def test_what_is_trained_is_what_has_a_strategy(of: Job) -> None:
    every = whole_space(of)
    every = every.take(np.arange(len(every))[:: max(1, len(every) // 1500)])
    found = Trainable(of)(every)
    assert found.tolist() == trained(of, every)
    assert found.any() and not found.all()


def test_what_does_not_fit_is_told() -> None:
    found = search(job(memory_limit_bytes=1000))
    assert found.num_fitting == 0 and not len(found.best) and not len(found.front)
    assert found.rejected.memory_bytes[0] == found.smallest_bytes > 1000


@cases("ranks, batch", (7, 3), (3, 2), (11, 5))
def test_a_pipeline_that_no_batch_fills_is_no_mesh(ranks, batch):
    with pytest.raises(UsageError, match=f"--gpus {ranks}: no mesh divides the job"):
        meshes(job(ranks, batch, model=replace(SMALL, layers=12)))


def test_refused_meshes_are_counted_by_reason() -> None:
    of = job(4, 2, model=replace(SMALL, layers=1), axes=("tensor", "data", "pipeline"))
    assert refused_meshes(of) == {
        "more stages than layers": 3,
        "data, shard and expert ranks do not divide the batch": 1,
    }


@given(st.lists(st.tuples(st.floats(0.01, 10.0), st.integers(1, 16)), min_size=1))
def test_what_to_try_first_is_about_as_fast_and_has_the_fewest_stages(
    ways: list[tuple[float, int]],
) -> None:
    steps, stages = np.array(ways).T
    first = first_to_try(steps, stages.astype(int))
    close = steps <= CLOSE * steps.min()
    assert close[first]
    assert stages[first] == stages[close].min()
    assert steps[first] == steps[close & (stages == stages[first])].min()
