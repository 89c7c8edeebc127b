"""What a search keeps and leaves out, on a few made-up candidates."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.costmodel.search.choice import Choice, columns_of
from scalebench.costmodel.search.ranking import (
    Found,
    Trains,
    _both,
    _dominated,
    _first_of_ways,
    _in_parts,
    _nothing,
    _on_front,
    _State,
    search,
)
from scalebench.costmodel.search.space import Candidates, Mesh, meshes
from scalebench.costmodel.search.step.parts import StepParts
from tests.unit.costmodel.search.jobs import job

NO_TIME = {f.name: 0.0 for f in fields(StepParts)}


def found(*rows: tuple[float, float], made: list[Choice] | None = None) -> Found:
    """Return candidates with these steps and memory, each a mesh of its own if not said."""
    made = made or [Choice(data=number) for number in range(1, len(rows) + 1)]
    steps, memory = np.array(rows, dtype=float).T
    nothing = np.zeros(len(rows))
    parts = {name: nothing for name in NO_TIME} | {"compute_s": steps}
    return Found(columns_of(made), StepParts(**parts), memory)


def state(kept: Found | None, wanted: int, trains: Trains | None = None) -> _State:
    made = _State(job(), wanted, True, trains)
    made.kept = kept
    return made


PAIRS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=8)


@given(PAIRS)
def test_the_front_has_what_needs_less_than_all_that_come_before(rows: list[tuple[int, int]]):
    expected = [all(size < before for _, before in rows[:i]) for i, (_, size) in enumerate(rows)]
    assert _on_front(found(*rows)).tolist() == expected


@given(PAIRS, PAIRS)
def test_what_is_dominated_has_a_bound_above_a_step_that_needs_no_more(
    kept: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    bound, memory = np.array(asked, dtype=float).T
    expected = [any(step < low and needs <= size for step, needs in kept) for low, size in asked]
    assert _dominated(bound, memory, found(*kept)).tolist() == expected


WAYS = [
    Choice(data=2, tensor=3),
    Choice(data=2, tensor=3, microbatches=2),
    Choice(data=3, tensor=2),
    Choice(data=2, shard=3, zero=1),
    Choice(data=2, shard=3, zero=2),
    Choice(data=3, context=2),
    Choice(data=2, shard=3, zero=2, checkpointing="full"),
    Choice(data=3, expert=2),
    Choice(data=3, pipeline=2, schedule="gpipe"),
    Choice(data=2, expert=3),
    Choice(data=3, tensor=2, precision="bfloat16"),
    Choice(data=2, context=3),
    Choice(data=2, pipeline=3, schedule="gpipe"),
    Choice(data=3, shard=2, zero=1),
]


@given(st.permutations(WAYS * 2))
def test_the_first_of_each_mesh_and_stage(made: list[Choice]) -> None:
    seen: set[tuple[int, ...]] = set()
    expected = []
    for one in made:
        expected.append(one.mesh not in seen)
        seen.add(one.mesh)
    assert _first_of_ways(columns_of(made)).tolist() == expected
    assert sum(expected) == 11


def test_no_two_meshes_and_stages_are_taken_for_one() -> None:
    sizes = {
        "tensor": (1, 2, 3), "context": (1, 2, 3), "expert": (1, 2), "shard": (1, 2, 3),
        "data": (1, 2, 4), "pipeline": (1, 2, 3, 5), "zero": (0, 1, 2, 3),
    }  # fmt: skip
    rows = [np.tile(column.ravel(), 2) for column in np.meshgrid(*sizes.values())]
    one = columns_of([Choice(data=1)]).take(np.zeros(len(rows[0]), dtype=np.int64))
    every = Candidates(**{**one.__dict__, **dict(zip(sizes, rows, strict=True))})
    half = len(every) // 2
    assert _first_of_ways(every).tolist() == [True] * half + [False] * half


def test_meshes_are_searched_from_the_shortest_pipelines_and_smallest_groups_on() -> None:
    """Products of pipeline, tensor and context; equal ones by their own order."""
    ordered = [
        Mesh(1, 1, 12, 1, 1, 1), Mesh(1, 1, 1, 2, 6, 1), Mesh(1, 2, 1, 1, 6, 1),
        Mesh(2, 1, 1, 1, 6, 1), Mesh(1, 1, 1, 4, 1, 3), Mesh(1, 2, 1, 1, 3, 2),
        Mesh(2, 2, 1, 1, 3, 1), Mesh(1, 3, 1, 2, 1, 2), Mesh(3, 1, 1, 1, 2, 2),
    ]  # fmt: skip
    first, second = sorted(ordered[:2])
    ordered[:2] = [first, second]
    parts = list(_in_parts(ordered[::-1], 4))
    assert [len(part) for part in parts] == [4, 4, 1]
    assert [one for part in parts for one in part] == ordered
    assert [len(part) for part in _in_parts([Mesh(1, 1, 1, 1, 1, 1)] * 257)] == [256, 1]


@pytest.mark.parametrize(
    ("wanted", "expected"), [(1, 2.0), (2, 3.0), (3, 5.0), (4, np.inf), (5, np.inf)]
)
def test_the_worst_of_those_that_are_wanted(wanted: int, expected: float) -> None:
    kept = found((5.0, 1.0), (3.0, 1.0), (1.0, 1.0), (2.0, 1.0))
    assert state(kept, wanted)._worst(np.array([True, True, False, True])) == expected


def test_without_any_that_are_kept_all_are_still_open() -> None:
    asked = found((9.0, 9.0), (1.0, 1.0))
    assert state(None, 1)._still_open(asked.candidates, asked.step_s, asked.memory_bytes).all()


def test_what_may_be_among_the_best_or_on_the_front_is_still_open() -> None:
    """Two meshes take 2 s and 4 s; of the first there is a way of 6 s with less memory."""
    made = [Choice(data=1), Choice(data=2), Choice(data=1)]
    kept = found((2.0, 50.0), (4.0, 40.0), (6.0, 30.0), made=made)
    asked = [
        (4.0, 50.0, True),  # as good as the second best
        (4.1, 50.0, False),
        (4.1, 40.0, False),
        (4.1, 39.0, True),  # no other with so little memory is as fast
        (6.0, 30.0, True),
        (6.1, 30.0, False),
        (99.0, 29.0, True),
    ]
    rows = found(*((bound, memory) for bound, memory, _ in asked))
    found_open = state(kept, 2)._still_open(rows.candidates, rows.step_s, rows.memory_bytes)
    assert found_open.tolist() == [is_open for *_, is_open in asked]


def by_microbatches(of: Candidates) -> np.ndarray:
    """Say that a strategy trains what has two microbatches."""
    return of.microbatches == 2


def test_what_is_trained_is_open_until_as_many_trained_ones_are_faster() -> None:
    """Of the trained meshes one takes 5 s: of two that are wanted one may take any time."""
    made = [Choice(data=1), Choice(data=2), Choice(data=2, microbatches=2)]
    kept = found((1.0, 10.0), (2.0, 10.0), (5.0, 10.0), made=made)
    asked = [Choice(data=3), Choice(data=3, microbatches=2), Choice(data=4, microbatches=2)]
    rows = found((4.0, 20.0), (5.0, 20.0), (5.1, 20.0), made=asked)
    for wanted, expected in ((1, [False, True, False]), (2, [False, True, True])):
        made_state = state(kept, wanted, by_microbatches)
        mask = made_state._still_open(rows.candidates, rows.step_s, rows.memory_bytes)
        assert mask.tolist() == expected


def test_the_first_trained_way_of_each_mesh() -> None:
    made = [
        Choice(data=1), Choice(data=1, microbatches=2), Choice(data=2, microbatches=2),
        Choice(data=1, microbatches=2), Choice(data=3),
    ]  # fmt: skip
    of = columns_of(made)
    assert state(None, 1, by_microbatches)._first_trained(of).tolist() == [0, 1, 1, 0, 0]
    assert not state(None, 1)._first_trained(of).any()


def test_of_equal_steps_less_recomputing_fewer_microbatches_and_less_memory_come_first() -> None:
    made = [
        Choice(data=1, checkpointing="full"),
        Choice(data=2, checkpointing="selective", microbatches=2),
        Choice(data=3, microbatches=3),
        Choice(data=4, microbatches=2),
        Choice(data=5, microbatches=2),
        Choice(data=6, checkpointing="full"),
    ]
    rows = [(2.0, 1.0), (2.0, 1.0), (2.0, 1.0), (2.0, 6.0), (2.0, 5.0), (1.0, 9.0)]
    selected = state(None, 6)._selected(found(*rows, made=made))
    assert selected.candidates.data.tolist() == [6, 5, 4, 3, 2, 1]
    assert selected.step_s.tolist() == [1, 2, 2, 2, 2, 2]


def test_kept_are_the_front_the_best_of_each_mesh_and_the_best_that_is_trained() -> None:
    kept = found((3.0, 30.0), (4.0, 40.0), made=[Choice(data=1), Choice(data=2)])
    new = found(
        (1.0, 50.0),  # the best of the first mesh
        (2.0, 50.0),  # neither better nor smaller
        (6.0, 60.0),  # the first that is trained
        (7.0, 60.0),
        (8.0, 20.0),  # the smallest
        made=[
            Choice(data=1), Choice(data=1), Choice(data=1, microbatches=2),
            Choice(data=1, microbatches=2), Choice(data=1),
        ],
    )  # fmt: skip
    assert state(kept, 1)._selected(new).step_s.tolist() == [1, 3, 4, 8]
    assert state(kept, 1, by_microbatches)._selected(new).step_s.tolist() == [1, 3, 4, 6, 8]


def test_two_finds_one_after_another_keep_their_parts() -> None:
    one, other = found((1.0, 5.0), (2.0, 6.0)), found((3.0, 7.0))
    both = _both(one, other)
    assert both.step_s.tolist() == [1, 2, 3] and both.memory_bytes.tolist() == [5, 6, 7]
    assert both.candidates.data.tolist() == [1, 2, 1] and len(both) == 3
    part = both.take(np.array([2, 0]))
    assert part.step_s.tolist() == [3, 1] and part.memory_bytes.tolist() == [7, 5]
    assert len(_nothing()) == len(_nothing().step_s) == len(_on_front(_nothing())) == 0


def test_the_smallest_that_do_not_fit_are_kept_one_of_each_mesh() -> None:
    made = state(None, 1)
    first = found((0.0, 5.0), (0.0, 3.0), (0.0, 4.0), made=[Choice(data=n) for n in (1, 1, 2)])
    made._reject(first.candidates, first.memory_bytes)
    second = found((0.0, 2.0), (0.0, 9.0), (0.0, 3.5), made=[Choice(data=n) for n in (2, 1, 3)])
    made._reject(second.candidates, second.memory_bytes)
    assert made.rejected is not None
    assert made.rejected[0].data.tolist() == [2, 1, 3]
    assert made.rejected[1].tolist() == [2.0, 3.0, 3.5]
    many = found(*((0.0, 100.0 - n) for n in range(70)))
    other = state(None, 1)
    other._reject(many.candidates, many.memory_bytes)
    assert other.rejected is not None
    assert other.rejected[1].tolist() == [float(size) for size in range(31, 95)]


def test_a_search_tells_how_many_configurations_it_has_looked_at() -> None:
    of, told = job(4, 8), []
    ranked = search(of, on_progress=lambda text, total: told.append((text, total)))
    assert told == [(f"{ranked.num_candidates:,} configurations", None)]
    assert len(ranked.best) == 10 < len(ranked.ways)
    assert ranked.num_meshes == len(meshes(of))
    assert ranked.best.step_s.tolist() == sorted(ranked.best.step_s)
    assert not len(ranked.rejected) and not len(ranked.trained)


def test_without_an_end_of_what_is_wanted_each_configuration_is_evaluated_once() -> None:
    ranked = search(job(8, 16, axes=("tensor", "data", "pipeline")), wanted=10**6)
    assert ranked.num_evaluated == ranked.num_fitting == ranked.num_candidates > 800
    assert len(ranked.best) == len(ranked.ways)


def test_where_nothing_fits_there_is_no_best_but_the_smallest_are_told() -> None:
    for prune in (True, False):
        ranked = search(job(4, 8, memory_limit_bytes=1000), prune=prune)
        assert (ranked.num_fitting, ranked.num_evaluated, len(ranked.ways)) == (0, 0, 0)
        assert ranked.rejected.memory_bytes[0] == ranked.smallest_bytes > 1000
        assert (ranked.rejected.step_s > 0).all()
