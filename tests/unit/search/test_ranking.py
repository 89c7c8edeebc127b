"""The search is exact: it finds what looking at every configuration finds."""

import functools
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebench.costmodel.pipelines.orders import why_not
from scalebench.errors import UsageError
from scalebench.search.choice import choice_at, choices
from scalebench.search.job import SCHEDULES, Job
from scalebench.search.links import NominalLinks
from scalebench.search.memory import fits, memory_bytes
from scalebench.search.ranking import Ranking, search
from scalebench.search.run import Trainable
from scalebench.search.space import Candidates, Floats, candidates, joined, meshes
from scalebench.search.step import bound_s, step_parts
from scalebench.search.strategies import strategy_of
from tests.unit.search.jobs import ROUTED, SMALL, TWO_LEVELS, job

JOBS = {
    "dense": job(),
    "routed": job(model=ROUTED),
    "on gpus": job(device="cuda"),
    "little memory": job(memory_limit_bytes=40_000_000, margin=0.2),
    "sixteen": job(16, 16),
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


@pytest.mark.parametrize("name", JOBS)
def test_the_best_and_the_front_are_those_of_the_whole_space(name: str) -> None:
    found = ten_best(name)
    best, num_fitting = by_hand(name, 10)
    assert found.num_candidates == len(whole(name).every)
    assert found.num_fitting == num_fitting
    assert found.best.step_s.tolist() == best
    assert found.num_evaluated < num_fitting, "bounds have saved nothing"


@pytest.mark.parametrize("name", JOBS)
def test_nothing_is_faster_with_as_little_memory_as_a_point_of_the_front(name: str) -> None:
    fine = fits(JOBS[name], whole(name).memory)
    memory, steps = whole(name).memory[fine], whole(name).steps[fine]
    front = ten_best(name).front
    assert front.step_s[-1] == steps.min() and front.memory_bytes[0] == memory.min()
    for step, size in zip(front.step_s, front.memory_bytes, strict=True):
        assert steps[memory <= size].min() == step


def test_without_bounds_the_answer_is_the_same() -> None:
    with_, without = ten_best("sixteen"), search(JOBS["sixteen"], wanted=10, prune=False)
    assert choices(JOBS["sixteen"], with_.best) == choices(JOBS["sixteen"], without.best)
    assert with_.front.step_s.tolist() == without.front.step_s.tolist()
    assert without.num_evaluated == without.num_fitting > with_.num_evaluated


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


@settings(max_examples=12)
@given(more=st.floats(0.01, 3))
def test_a_larger_margin_lets_fewer_fit_and_makes_the_best_no_faster(more: float) -> None:
    of = JOBS["little memory"]
    strict = replace(of, margin=of.margin + more)
    loose, tight = ten_best("little memory"), search(strict)
    assert tight.num_fitting <= loose.num_fitting
    if len(tight.best):
        assert tight.best.step_s[0] >= loose.best.step_s[0]
        limit = strict.memory_limit_bytes or 0
        assert (tight.best.memory_bytes * (1 + strict.margin) <= limit).all()


def trained(of: Job, every: Candidates) -> list[bool]:
    """Ask for the strategy of each configuration."""
    asked = (choice_at(every, i) for i in range(len(every)))
    job_of = (of.device, of.world_size, of.batch, of.model.experts)
    return [not isinstance(strategy_of(one, *job_of), str) for one in asked]


@pytest.mark.parametrize(
    "of",
    [job(4, 8), job(8, 24, device="cuda"), job(6, 60), job(8, 8, model=ROUTED)],
    ids=["four", "on gpus", "odd cuts", "routed"],
)
def test_what_is_trained_is_what_has_a_strategy(of: Job) -> None:
    every = whole_space(of)
    every = every.take(np.arange(len(every))[:: max(1, len(every) // 1500)])
    found = Trainable(of)(every)
    assert found.tolist() == trained(of, every)
    assert found.any() and not found.all()


@pytest.mark.parametrize("name", ["dense", "little memory"])
def test_the_best_that_are_trained_are_those_of_the_whole_space(name: str) -> None:
    of = JOBS[name]
    found = search(of, wanted=6, trains=Trainable(of))
    every, steps = whole(name).every, whole(name).steps
    best: dict[tuple[int, ...], float] = {}
    for i in np.flatnonzero(Trainable(of)(every) & fits(of, whole(name).memory)):
        way = ways(every, int(i))
        best[way] = min(best.get(way, np.inf), float(steps[i]))
    assert found.trained.step_s.tolist() == sorted(best.values())[:6]
    assert all(trained(of, found.trained.candidates))
    assert found.best.step_s.tolist() == by_hand(name, 6)[0]
    assert not all(Trainable(of)(found.best.candidates)), "all of the best are trained"
    assert found.num_evaluated < found.num_fitting, "bounds have saved nothing"


def test_what_does_not_fit_is_told() -> None:
    found = search(job(memory_limit_bytes=1000))
    assert found.num_fitting == 0 and not len(found.best) and not len(found.front)
    assert found.rejected.memory_bytes[0] == found.smallest_bytes > 1000


def test_every_schedule_of_the_space_is_one_that_ranks_can_run() -> None:
    every = whole_space(job(8, 16))
    staged = every.take(every.pipeline > 1)
    columns = (staged.schedule, staged.pipeline, staged.microbatches, staged.chunks)
    asked = {tuple(map(int, row)) for row in zip(*columns, strict=True)}
    assert len(asked) > 20
    for schedule, p, m, v in asked:
        assert why_not(SCHEDULES[schedule], p, m, v) is None and p * v <= SMALL.layers


def test_every_mesh_divides_the_experts() -> None:
    odd = replace(ROUTED, experts=6)
    found = {mesh.expert for mesh in meshes(job(8, 16, model=odd))}
    assert found == {1, 2}


@settings(max_examples=12)
@given(limit=st.integers(1_000_000, 60_000_000), margin=st.floats(0, 2), more=st.integers(0, 10**7))
def test_more_memory_never_makes_the_best_slower_and_all_that_is_chosen_fits(
    limit: int, margin: float, more: int
) -> None:
    little, much = (
        job(4, 8, memory_limit_bytes=size, margin=margin) for size in (limit, limit + more)
    )
    few, many = search(little, 3), search(much, 3)
    assert few.num_fitting <= many.num_fitting
    for found in (few.best, few.front):
        assert (found.memory_bytes * (1 + margin) <= limit).all()
    assert (few.rejected.memory_bytes * (1 + margin) > limit).all()
    if len(few.best):
        assert many.best.step_s[0] <= few.best.step_s[0]


def test_of_what_does_not_fit_the_smallest_of_each_mesh_is_kept() -> None:
    of, found = JOBS["little memory"], ten_best("little memory")
    every, memory = whole("little memory").every, whole("little memory").memory
    smallest: dict[tuple[int, ...], float] = {}
    for i in np.flatnonzero(~fits(of, memory)):
        way = ways(every, int(i))
        smallest[way] = min(smallest.get(way, np.inf), float(memory[i]))
    assert found.rejected.memory_bytes.tolist() == sorted(smallest.values())[:64]
    assert (found.rejected.memory_bytes[0] * (1 + of.margin)) > (of.memory_limit_bytes or 0)


@pytest.mark.parametrize(("ranks", "batch"), [(7, 3), (3, 2), (11, 5)])
def test_a_pipeline_that_no_batch_fills_is_no_mesh(ranks, batch):
    with pytest.raises(UsageError, match=f"--gpus {ranks}: no mesh divides the job"):
        meshes(job(ranks, batch, model=replace(SMALL, layers=12)))
