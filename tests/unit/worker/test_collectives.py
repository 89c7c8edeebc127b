"""Schedules of the all-reduces: sums, laws, deadlock and shapes, without a process."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebench.worker.collectives import ALL_REDUCES
from scalebench.worker.collectives.double_tree import two_trees
from scalebench.worker.collectives.execute import make_plan
from scalebench.worker.collectives.halving_doubling import windows
from scalebench.worker.collectives.hierarchical import ranks_by_host
from scalebench.worker.collectives.schedule import (
    Piece,
    Receive,
    Send,
    bounds,
    num_segments,
    side_by_side,
)
from scalebench.worker.collectives.tree import binary_tree, binomial_tree
from tests.builders.simulated_ranks import Deadlock, run_eagerly, run_in_lockstep
from tests.collective_variants import VARIANTS, Variant
from tests.examples import examples

NUM_RANKS = st.integers(1, 13)
LENGTHS = st.integers(0, 60)
SEGMENTS = st.integers(1, 20)
every_variant = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())


def own_marks(num_ranks: int, length: int) -> list[np.ndarray]:
    """Vectors whose sum shows how often each rank's contribution is in each element."""
    marks = np.eye(num_ranks)
    return [np.tile(marks[rank], (length, 1)) for rank in range(num_ranks)]


def expect_each_once(vectors: list[np.ndarray]) -> None:
    for rank, vector in enumerate(vectors):
        assert (vector == 1).all(), f"rank {rank}: {vector}"


def random_floats(num_ranks: int, length: int) -> list[np.ndarray]:
    values = np.random.default_rng(length).normal(size=(num_ranks, length))
    return list(values.astype(np.float32))


def num_sent(schedule) -> int:
    return sum(m.piece.length for step in schedule for m in step if isinstance(m, Send))


@given(st.integers(0, 50), st.integers(0, 200), st.integers(1, 40))
def test_parts_cover_a_piece_in_order_without_a_gap(start, length, num_parts):
    parts = [bounds(Piece(start, start + length), num_parts, part) for part in range(num_parts)]
    assert parts[0].start == start
    assert parts[-1].stop == start + length
    assert all(a.stop == b.start for a, b in pairwise(parts))
    lengths = [part.length for part in parts]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1


@given(st.integers(0, 1000), st.integers(1, 100))
def test_segments_are_as_few_as_the_limit_allows(length, segment):
    count = num_segments(length, segment)
    assert bounds(Piece(0, length), count, 0).length <= segment
    assert count == 1 or bounds(Piece(0, length), count - 1, 0).length > segment


@every_variant
@settings(max_examples=examples(25), deadline=None)
@given(num_ranks=NUM_RANKS, length=LENGTHS, segment=SEGMENTS)
def test_in_lockstep_every_element_holds_every_rank_once(variant, num_ranks, length, segment):
    vectors = own_marks(num_ranks, length)
    run_in_lockstep(variant.schedules(num_ranks, length, segment), vectors)
    expect_each_once(vectors)


@every_variant
@settings(max_examples=examples(25), deadline=None)
@given(
    num_ranks=NUM_RANKS,
    length=LENGTHS,
    segment=SEGMENTS,
    window=st.integers(0, 100),
    seed=st.integers(0, 10**6),
    eager=st.sampled_from((0.01, 0.5, 0.99)),
)
def test_with_everything_in_flight_that_the_plan_allows_the_sums_are_the_same(
    variant, num_ranks, length, segment, window, seed, eager
):
    schedules = variant.schedules(num_ranks, length, segment)
    plans = [make_plan(schedule, window) for schedule in schedules]
    vectors = own_marks(num_ranks, length)
    run_eagerly(plans, vectors, seed, eager)
    expect_each_once(vectors)
    floats = random_floats(num_ranks, length)
    run_eagerly(plans, floats, seed, eager)
    in_lockstep = random_floats(num_ranks, length)
    run_in_lockstep(schedules, in_lockstep)
    for vector in (*floats, *in_lockstep):
        np.testing.assert_array_equal(vector, floats[0])


@every_variant
@settings(max_examples=examples(25), deadline=None)
@given(num_ranks=NUM_RANKS, length=LENGTHS, segment=SEGMENTS)
def test_a_rank_sends_what_the_law_says(variant, num_ranks, length, segment):
    schedules = variant.schedules(num_ranks, length, segment)
    assert [num_sent(schedule) for schedule in schedules] == variant.sent(num_ranks, length)


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 5, 8, 16])
def test_the_laws_are_those_of_the_textbook(num_ranks):
    length = 240 * num_ranks
    least = 2 * (num_ranks - 1) * length // num_ranks
    sent = {name: variant.sent(num_ranks, length) for name, variant in VARIANTS.items()}
    assert sent["ring"] == sent["ring, both ways"] == [least] * num_ranks
    assert sent["hierarchical, one host"] == [least] * num_ranks
    assert max(sent["double-tree"]) <= 2 * length
    one_at_root = [(num_ranks - 1) * length] + [length] * (num_ranks - 1)
    assert sent["gather-broadcast"] == sent["parameter-server"] == one_at_root
    for name in ("tree", "tree, binomial", "double-tree"):
        assert sum(sent[name]) == 2 * (num_ranks - 1) * length
    assert max(sent["tree"]) <= 3 * length
    core = 2 ** (num_ranks.bit_length() - 1)
    surplus = num_ranks - core
    least_of_core = 2 * (core - 1) * length // core
    assert sent["halving-doubling"] == (
        [least_of_core + length] * surplus + [least_of_core] * (core - surplus) + [length] * surplus
    )
    if num_ranks % 2 == 0:
        hosts = num_ranks // 2
        across = 2 * (hosts - 1) * (length // 2) // hosts
        assert sent["hierarchical, pairs"] == [length + across] * num_ranks


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 5, 8, 16])
def test_the_number_of_turns_is_that_of_the_textbook(num_ranks):
    def steps(name):
        return max(map(len, VARIANTS[name].schedules(num_ranks, 1000, 1000)))

    log = num_ranks.bit_length() - 1
    surplus = num_ranks > 2**log
    assert steps("ring") == steps("ring, both ways") == 2 * (num_ranks - 1)
    assert steps("halving-doubling") == 2 * log + 2 * surplus
    assert steps("tree") == 2 * log
    assert steps("tree, binomial") == 2 * log  # in a partly filled tree one turn less is enough
    assert steps("double-tree") <= 2 * (log + surplus)
    assert steps("gather-broadcast") == 2 * (num_ranks - 1)


@given(st.integers(1, 200), st.sampled_from([binary_tree, binomial_tree]))
def test_trees_reach_every_rank(num_ranks, make_tree):
    expect_tree(make_tree(num_ranks))


def expect_tree(tree) -> None:
    """One root, one parent for each other rank, and every way up ends at the root."""
    ranks = set(range(len(tree.parents)))
    (root,) = (rank for rank in ranks if tree.parents[rank] is None)
    reached, below = {root}, [root]
    while below:
        below = [child for rank in below for child in tree.children[rank]]
        assert reached.isdisjoint(below)
        reached.update(below)
    assert reached == ranks
    for rank in ranks - {root}:
        assert tree.heights[rank] < tree.heights[tree.parents[rank]]


@given(st.integers(2, 300))
def test_a_leaf_of_one_tree_is_an_inner_rank_of_the_other(num_ranks):
    first, second = two_trees(num_ranks)
    for tree in (first, second):
        expect_tree(tree)
        assert max(map(len, tree.children)) <= 2
        assert max(tree.heights) == (num_ranks - 1).bit_length()
    for rank in range(num_ranks):
        assert first.children[rank] or second.children[rank], rank


@given(st.integers(0, 6), st.integers(0, 500))
def test_halving_shares_the_vector_out(log, length):
    core = 2**log
    last = sorted(windows(rank, core, length)[-1] for rank in range(core))
    assert last[0].start == 0
    assert last[-1].stop == length
    assert all(a.stop == b.start for a, b in pairwise(last))
    for rank in range(core):
        mine = windows(rank, core, length)
        for turn in range(log):
            peer = windows(rank ^ 1 << turn, core, length)
            assert peer[turn] == mine[turn]
            assert {*range(*mine[turn])} == {*range(*mine[turn + 1])} ^ {*range(*peer[turn + 1])}


def test_hosts_keep_the_order_in_which_they_appear():
    assert ranks_by_host(["b", "a", "b", "c", "a"]) == [[0, 2], [1, 4], [3]]


def test_a_step_waits_for_what_it_sends_on_and_for_nothing_else():
    a, b = Piece(0, 4), Piece(4, 8)
    plan = make_plan(
        [
            (Receive(1, a, add=True), Receive(1, b, add=False)),
            (Send(2, Piece(8, 9)),),
            (Send(2, Piece(3, 4)),),
            (Send(2, b), Send(3, Piece(9, 9))),
        ],
        window=100,
    )
    assert [post.num_finished for post in plan.posts] == [0, 0, 1, 2]
    assert [len(post.messages) for post in plan.posts] == [2, 1, 1, 1]
    assert (plan.num_slots, plan.slot_length) == (1, 4)


def test_no_more_is_under_way_than_the_window_lets_in():
    pieces = [Piece(4 * i, 4 * i + 4) for i in range(5)]
    plan = make_plan([(Receive(1, piece, add=i < 4),) for i, piece in enumerate(pieces)], 12)
    assert [post.num_finished for post in plan.posts] == [0, 0, 0, 1, 2]
    assert plan.num_slots == 3
    alone = make_plan([(Receive(1, piece, add=True),) for piece in pieces], 1)
    assert [post.num_finished for post in alone.posts] == [0, 1, 2, 3, 4]
    assert alone.num_slots == 1


def test_ring_keeps_segments_in_flight():
    """The second turn does not wait for the whole first one: that is what pipelining means."""
    (steps, *_) = VARIANTS["ring"].schedules(num_ranks=2, length=80, segment=10)
    plan = make_plan(steps, window=40)
    assert [post.num_finished for post in plan.posts] == [0, 0, 0, 0, 1, 2, 3, 4]


def test_a_server_hands_out_nothing_before_it_has_everything_unless_told_to_overlap():
    def finished_before_first_send(name, server):
        steps = VARIANTS[name].schedules(num_ranks=3, length=80, segment=10)[server]
        plan = make_plan(steps, window=1000)
        return next(
            p.num_finished for p in plan.posts if any(isinstance(m, Send) for m in p.messages)
        )

    everything = 2 * 8
    assert finished_before_first_send("parameter-server", 0) == everything
    assert finished_before_first_send("parameter-server, last rank, overlap", 2) == 2


def broken(variant: Variant, num_ranks: int, change):
    schedules = variant.schedules(num_ranks, 12, 100)
    return [
        [tuple(change(rank, number, m) for m in step) for number, step in enumerate(schedule)]
        for rank, schedule in enumerate(schedules)
    ]


def test_these_tests_see_a_wrong_chunk():
    def shift(rank, number, message):
        if isinstance(message, Receive) and (rank, number) == (1, 0):
            return Receive(message.peer, Piece(0, message.piece.length), message.add)
        return message

    def not_added(rank, number, message):
        if isinstance(message, Receive) and (rank, number) == (1, 0):
            return Receive(message.peer, message.piece, add=False)
        return message

    with pytest.raises(AssertionError):
        run_in_lockstep(broken(VARIANTS["ring"], 3, shift), own_marks(3, 12))
    vectors = own_marks(3, 12)
    run_in_lockstep(broken(VARIANTS["ring"], 3, not_added), vectors)
    with pytest.raises(AssertionError):
        expect_each_once(vectors)


def test_these_tests_see_a_deadlock():
    first_send_then_receive = [
        [(Send(1 - rank, Piece(0, 1)),), (Receive(1 - rank, Piece(0, 1), add=True),)]
        for rank in range(2)
    ]
    with pytest.raises(Deadlock):
        run_in_lockstep(first_send_then_receive, own_marks(2, 1))
    with pytest.raises(Deadlock):
        run_eagerly([make_plan([(Receive(0, Piece(0, 1), True),)], 1)], own_marks(1, 1), 0, 0.5)


def test_these_tests_see_what_is_overwritten_too_early():
    """Rank 0 sends an element and takes another's in its place, not dependent on the first."""
    piece = Piece(0, 1)
    schedules = (
        [(Send(1, piece),), (Receive(2, piece, add=False),)],
        [(Receive(0, piece, add=False),)],
        [(Send(0, piece),)],
    )
    seen = set()
    for seed in range(20):
        vectors = own_marks(3, 1)
        run_eagerly([make_plan(schedule, 1) for schedule in schedules], vectors, seed, eager=0.9)
        seen.add(int(vectors[1][0].argmax()))
    assert seen == {0, 2}


def test_schedules_run_side_by_side():
    first, second = Send(1, Piece(0, 1)), Send(2, Piece(1, 2))
    assert list(side_by_side([(first,)], [(second,), (second,)])) == [(first, second), (second,)]


def test_the_table_names_every_algorithm_once():
    assert len(set(ALL_REDUCES.values())) == len(ALL_REDUCES)
    assert {variant.module.all_reduce for variant in VARIANTS.values()} == {*ALL_REDUCES.values()}
