"""The search is exact: it finds what looking at every configuration finds."""

import functools
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebench.errors import UsageError
from scalebench.report.search import render_search
from scalebench.report.tables.layout import Screen
from scalebench.search.candidates import Candidates, Floats, joined
from scalebench.search.choice import Choice, choice_at, strategy_of
from scalebench.search.prediction.links import NominalLinks
from scalebench.search.prediction.memory import fits, memory_bytes
from scalebench.search.prediction.step import PARTS, StepParts, bound_s, step_parts
from scalebench.search.ranking import CLOSE, first_to_try, search
from scalebench.search.result import result_of, why_faster
from scalebench.search.run import Trainable
from scalebench.search.scores import Scores, probability_fastest, typical_error
from scalebench.search.space import candidates, meshes, refused_meshes
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


def whole_space(of):
    return joined(list(candidates(of, meshes(of))))


@functools.cache
def whole(name):
    every = whole_space(JOBS[name])
    return Whole(every, memory_bytes(JOBS[name], every), step_parts(JOBS[name], every).step_s)


def by_hand(name, wanted):
    """Return the best steps and how many fit, from looking at everything."""
    of, every, memory, steps = JOBS[name], whole(name).every, whole(name).memory, whole(name).steps
    rows = [(float(steps[i]), ways(every, i)) for i in np.flatnonzero(fits(of, memory))]
    best: dict[tuple[int, ...], float] = {}
    for step, way in sorted(rows):
        best.setdefault(way, step)
    return sorted(best.values())[:wanted], len(rows)


def ways(of, i):
    columns = (of.tensor, of.context, of.expert, of.shard, of.data, of.pipeline, of.zero)
    return tuple(int(column[i]) for column in columns)


@cases("name", *JOBS)
def test_the_best_and_the_front_are_those_of_the_whole_space(name):
    found = search(JOBS[name], wanted=10)
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
def test_no_bound_is_above_the_step(batch, world_size, routed, on_gpu, faster):
    links = NominalLinks(TWO_LEVELS.faster(faster), "")
    of = job(world_size, batch * world_size, model=ROUTED if routed else SMALL, links=links,
             device="cuda" if on_gpu else "cpu")  # fmt: skip
    every = whole_space(of)
    steps = step_parts(of, every).step_s
    assert (bound_s(of, every) <= steps * (1 + 1e-12)).all()
    assert np.isfinite(steps).all() and (steps > 0).all()


@settings(max_examples=12)
@given(factor=st.floats(1, 50), world_size=st.sampled_from([4, 8]), on_gpu=st.booleans())
def test_a_faster_link_makes_the_best_no_slower(factor, world_size, on_gpu):
    of = job(world_size, device="cuda" if on_gpu else "cpu")
    faster = replace(of, links=NominalLinks(TWO_LEVELS.faster(factor), ""))
    assert search(faster, 1).best.step_s[0] <= search(of, 1).best.step_s[0] * (1 + 1e-12)


@cases(
    "of",
    *(job(4, 8), job(8, 24, device="cuda"), job(6, 60), job(8, 8, model=ROUTED)),
    ids=["four", "on gpus", "odd cuts", "routed"],
)
def test_what_is_trained_is_what_has_a_strategy(of):
    every = whole_space(of)
    every = every.take(np.arange(len(every))[:: max(1, len(every) // 1500)])
    found = Trainable(of)(every)
    job_of = (of.device, of.world_size, of.batch, of.model.experts)
    asked = (strategy_of(choice_at(every, i), *job_of) for i in range(len(every)))
    assert found.tolist() == [not isinstance(one, str) for one in asked]
    assert found.any() and not found.all()


def test_what_does_not_fit_is_told():
    found = search(job(memory_limit_bytes=1000))
    assert found.num_fitting == 0 and not len(found.best) and not len(found.front)
    assert found.rejected.memory_bytes[0] == found.smallest_bytes > 1000


@cases("ranks, batch", (7, 3), (3, 2), (11, 5))
def test_a_pipeline_that_no_batch_fills_is_no_mesh(ranks, batch):
    with pytest.raises(UsageError, match=f"--gpus {ranks}: no mesh divides the job"):
        meshes(job(ranks, batch, model=replace(SMALL, layers=12)))


def test_refused_meshes_are_counted_by_reason():
    of = job(4, 2, model=replace(SMALL, layers=1), axes=("tensor", "data", "pipeline"))
    assert refused_meshes(of) == {
        "more stages than layers": 3,
        "data, shard and expert ranks do not divide the batch": 1,
    }


@given(st.lists(st.tuples(st.floats(0.01, 10.0), st.integers(1, 16)), min_size=1))
def test_what_to_try_first_is_about_as_fast_and_has_the_fewest_stages(ways):
    steps, stages = np.array(ways).T
    first = first_to_try(steps, stages.astype(int))
    close = steps <= CLOSE * steps.min()
    assert close[first]
    assert stages[first] == stages[close].min()
    assert steps[first] == steps[close & (stages == stages[first])].min()


@cases("slower, told", (1.02, True), (1.2, False))
def test_a_shorter_pipeline_that_is_as_fast_is_named_to_try_first(slower, told):
    known = job(8, 16)
    ranking = search(known, wanted=50)
    stages = ranking.ways.candidates.pipeline
    both = ranking.ways.take(np.array([np.argmax(stages > 1), np.argmax(stages == 1)]))
    factors = np.array([1.0, slower * both.step_s[0] / both.step_s[1]])
    parts = {name: getattr(both.parts, name) * factors for name in PARTS}
    best = replace(both, parts=StepParts(**parts))
    found = result_of(known, replace(ranking, best=best), Scores(), "", (), 0.0)
    assert found.first_to_try == int(told)
    assert (f"try {found.best[1].mesh_words} first" in render_search(found, Screen(400))) is told


def test_the_probability_is_that_of_drawn_errors():
    random = np.random.default_rng(1)
    steps = np.array([1.0, 1.1, 1.15])
    drawn = np.log(steps) + 0.1 * random.standard_normal((200_000, 3))
    assert probability_fastest(list(steps), 0.1) == pytest.approx(
        np.mean(drawn.argmin(axis=1) == 0), abs=0.005
    )


def test_the_error_is_that_of_what_was_compared():
    assert typical_error([], []) is None
    assert typical_error([1.1, 0.9], [1.0, 1.0]) == pytest.approx(0.1, abs=0.01)


NOTHING = dict.fromkeys(PARTS, 0.0)
FIRST, SECOND = list(PARTS)[:2]


def choice(first_s, second_s, **changes):
    parts = NOTHING | {FIRST: first_s, SECOND: second_s}
    return Choice(**{"data": 1, **changes}, step_s=first_s + second_s, parts_s=parts)


def test_the_part_that_gains_most_is_named_with_what_it_gains():
    told = why_faster(choice(0.008, 0.002, data=4), choice(0.011, 0.0021, tensor=4))
    assert told == (
        f"data 4 is 3.10 ms (31 %) faster than tensor 4: it spends 3.00 ms less on {PARTS[FIRST]}."
    )


def test_parts_that_cancel_do_not_explain_a_gain_alone():
    before = choice(0.006, 0.004, tensor=4)
    third = list(PARTS)[2]
    after = choice(0.0117, 0, data=4).model_copy(
        update={"step_s": 0.0077, "parts_s": NOTHING | {FIRST: 0.0117, third: -0.004}}
    )
    assert why_faster(after, before).endswith(
        f"it spends 4.00 ms less on {PARTS[SECOND]} and 4.00 ms less on {PARTS[third]}, and "
        f"5.70 ms more on {PARTS[FIRST]}."
    )


@cases(
    "choice, mesh, how, name",
    (Choice(data=1), "one rank", "float32", "one"),
    (Choice(data=4), "data 4", "float32, buckets 25 MiB", "d4-b25"),
    (
        Choice(data=1, pipeline=2, schedule="interleaved-1f1b", chunks=2),
        "pipeline 2", "interleaved-1f1b v=2, float32", "p2-interleaved-1f1b-v2",
    ),
    (
        Choice(data=2, shard=4, tensor=2, zero=3, precision="bfloat16"),
        "data 2 × shard 4 (ZeRO-3) × tensor 2", "bfloat16", "d2-s4-t2-z3-bf16",
    ),
)  # fmt: skip
def test_a_configuration_in_words(choice, mesh, how, name):
    assert (choice.mesh_words, choice.how_words, choice.name) == (mesh, how, name)
