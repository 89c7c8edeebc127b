from dataclasses import replace

import numpy as np
import pytest

from scalebench.report.search import render_search
from scalebench.report.tables.layout import Screen
from scalebench.search.choice import Choice, choices
from scalebench.search.prediction.step import PARTS, StepParts
from scalebench.search.ranking import search
from scalebench.search.result import result_of, why_faster
from scalebench.search.scores import Scores, probability_fastest, typical_error
from tests.examples import cases
from tests.unit.search.jobs import job


def result(scores: Scores):
    known = job(4, 16)
    ranking = search(known)
    return choices(known, ranking.best), result_of(known, ranking, scores, "", (), 0.0)


@cases("slower, told", (1.02, True), (1.2, False))
def test_a_shorter_pipeline_that_is_as_fast_is_named_to_try_first(slower, told) -> None:
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


def test_the_probabilities_of_all_sum_to_one() -> None:
    steps = [1.0, 1.05, 1.2, 1.21]
    orders = [[one, *(s for s in steps if s != one)] for one in steps]
    assert sum(probability_fastest(order, 0.1) for order in orders) == pytest.approx(1, abs=1e-6)


def test_the_probability_is_that_of_drawn_errors() -> None:
    random = np.random.default_rng(1)
    steps = np.array([1.0, 1.1, 1.15])
    drawn = np.log(steps) + 0.1 * random.standard_normal((200_000, 3))
    assert probability_fastest(list(steps), 0.1) == pytest.approx(
        np.mean(drawn.argmin(axis=1) == 0), abs=0.005
    )


def test_the_error_is_that_of_what_was_compared() -> None:
    assert typical_error([], []) is None
    assert typical_error([1.1, 0.9], [1.0, 1.0]) == pytest.approx(0.1, abs=0.01)


NOTHING = dict.fromkeys(PARTS, 0.0)
FIRST, SECOND = list(PARTS)[:2]


def choice(first_s: float, second_s: float, **changes: int) -> Choice:
    parts = NOTHING | {FIRST: first_s, SECOND: second_s}
    return Choice(**{"data": 1, **changes}, step_s=first_s + second_s, parts_s=parts)


def test_the_part_that_gains_most_is_named_with_what_it_gains() -> None:
    told = why_faster(choice(0.008, 0.002, data=4), choice(0.011, 0.0021, tensor=4))
    assert told == (
        f"data 4 is 3.10 ms (31 %) faster than tensor 4: it spends 3.00 ms less on {PARTS[FIRST]}."
    )


def test_parts_that_cancel_do_not_explain_a_gain_alone() -> None:
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
def test_a_configuration_in_words(choice: Choice, mesh: str, how: str, name: str) -> None:
    assert (choice.mesh_words, choice.how_words, choice.name) == (mesh, how, name)
