import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebench.worker.collectives import ALL_REDUCES
from scalebench.worker.collectives.execute import make_plan
from tests.builders.tracing.simulated_ranks import run_eagerly, run_in_lockstep
from tests.examples import cases, examples
from tests.tools.collective_variants import VARIANTS

NUM_RANKS = st.integers(1, 13)
LENGTHS = st.integers(0, 60)
SEGMENTS = st.integers(1, 20)
every_variant = cases("variant", *VARIANTS.values(), ids=VARIANTS.keys())


def own_marks(num_ranks, length):
    marks = np.eye(num_ranks)
    return [np.tile(marks[rank], (length, 1)) for rank in range(num_ranks)]


def expect_each_once(vectors):
    for rank, vector in enumerate(vectors):
        assert (vector == 1).all(), f"rank {rank}: {vector}"


def random_floats(num_ranks, length):
    values = np.random.default_rng(length).normal(size=(num_ranks, length))
    return list(values.astype(np.float32))


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
def test_an_element_is_sent_once_for_each_sum_and_each_copy(variant, num_ranks, length, segment):
    sent = variant.sent(num_ranks, length, segment)
    assert sent == variant.sent(num_ranks, length)
    assert sum(sent) == 2 * (num_ranks - 1) * length


@cases("num_ranks", 2, 3, 4, 5, 8, 16)
def test_the_laws_are_those_of_the_textbook(num_ranks):
    length = 240 * num_ranks
    least = 2 * (num_ranks - 1) * length // num_ranks
    sent = {name: variant.sent(num_ranks, length) for name, variant in VARIANTS.items()}
    assert sent["ring"] == sent["ring, both ways"] == [least] * num_ranks
    assert sent["hierarchical, one host"] == [least] * num_ranks
    assert max(sent["double-tree"]) <= 2 * length
    one_at_root = [(num_ranks - 1) * length] + [length] * (num_ranks - 1)
    assert sent["gather-broadcast"] == sent["parameter-server"] == one_at_root
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


def test_the_table_names_every_algorithm_once():
    assert len(set(ALL_REDUCES.values())) == len(ALL_REDUCES)
    assert {variant.module.all_reduce for variant in VARIANTS.values()} == {*ALL_REDUCES.values()}
