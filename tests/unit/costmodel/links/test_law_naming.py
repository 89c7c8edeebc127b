"""The algorithm is named where the measurements tell it, and only there."""

from collections import Counter

import numpy as np
import pytest

from scalebench.costmodel.links.law_naming import NONE, LawNaming, name_law
from scalebench.costmodel.links.laws import LAWS, Terms, hierarchical_all_reduce, ring_all_reduce
from scalebench.errors import UsageError
from tests.builders.link_sweeps import at_several_sizes, line, point, sizes, sweep

NAMED = ["ring", "halving-doubling", "binomial tree", "double binary tree", "gather-broadcast"]


def two_levels(n):
    """Four ranks on a node; across nodes α is 3 times, 1/B 5 times as large."""
    inside, across = hierarchical_all_reduce(min(n, 4), max(n // 4, 1))
    return Terms(
        inside.latency_steps + 3 * across.latency_steps,
        inside.bytes_factor + 5 * across.bytes_factor,
    )


@pytest.mark.parametrize("algorithm", NAMED)
def test_the_law_that_made_the_times_is_named(algorithm):
    law = LAWS["all_reduce", algorithm]
    named = Counter(
        name_law(at_several_sizes(law, (2, 4, 8), seed, drift=0.05)).name for seed in range(25)
    )
    assert set(named) <= {algorithm, None}, named
    assert named[algorithm] >= 20, named


def test_a_wrong_law_is_hardly_ever_named_when_launches_differ_by_a_tenth():
    named = Counter(
        (algorithm, name_law(at_several_sizes(LAWS["all_reduce", algorithm], ns, s, 0.1)).name)
        for algorithm in ("ring", "halving-doubling")
        for ns in ((2, 4, 8), (2, 3, 4))
        for s in range(40)
    )
    wrong = sum(n for (true, name), n in named.items() if name not in (true, None))
    print(f"\n{dict(named)}")
    assert wrong <= 4  # of 160


def test_one_number_of_ranks_names_nothing():
    naming = name_law(at_several_sizes(ring_all_reduce, (2,), 0))
    assert naming.name is None
    assert "with N = 2 alone every law is the same straight line" in naming.reason


def test_two_numbers_of_ranks_are_too_few_for_a_name():
    naming = name_law(at_several_sizes(ring_all_reduce, (2, 4), 0))
    assert naming.name is None
    assert "ring fits best, but two N can match by accident: measure a third" in naming.reason


def test_laws_that_differ_too_little_are_not_told_apart():
    """Large messages only: ring and halving–doubling move the same bytes."""
    points = at_several_sizes(ring_all_reduce, (2, 4, 8), 1, size=sizes(10, 1 << 24))
    naming = name_law(points)
    assert naming.name is None
    assert "fit equally well at N = 2, 4, 8" in naming.reason
    assert {"ring", "halving-doubling"} <= set(naming.reason.replace(",", " ").split())


@pytest.mark.parametrize(
    ("law", "text"),
    [
        (lambda n: Terms(2, 1), "bandwidths alone would fit double binary tree"),
        (lambda n: Terms((n - 1) ** 2, 2 * (n - 1) / n), "alone would fit ring, halving-doubling"),
    ],
    ids=["a switch adds up", "latency grows faster than any law"],
)
def test_times_that_follow_no_law_are_given_no_name(law, text):
    naming = name_law(at_several_sizes(law, (2, 4, 8, 16), 2))
    assert naming.name is None
    assert naming.reason.startswith(NONE)
    assert text in naming.reason
    assert all(score.chance < 0.01 for score in naming.scores)


def test_a_hierarchy_is_named_when_its_nodes_are_known():
    points = at_several_sizes(two_levels, (2, 4, 8, 16, 32), 3)
    assert name_law(points, ranks_per_node=4).name == "hierarchical"
    assert name_law(points).name is None


def test_a_ring_is_no_hierarchy():
    points = at_several_sizes(ring_all_reduce, (2, 4, 8, 16, 32), 4)
    assert name_law(points, ranks_per_node=4).name == "ring"


def test_a_hierarchy_needs_sizes_that_show_both_levels():
    naming = name_law(at_several_sizes(ring_all_reduce, (2, 4), 5), ranks_per_node=4)
    assert "hierarchical" not in {score.algorithm for score in naming.scores}
    odd = name_law(at_several_sizes(ring_all_reduce, (2, 4, 6, 8), 5), ranks_per_node=4)
    assert "hierarchical" not in {score.algorithm for score in odd.scores}


def test_evidence_is_given_and_goes_through_json():
    points = at_several_sizes(LAWS["all_gather", "ring"], (2, 4, 8), 6, op="all_gather")
    naming = name_law(points)
    assert naming.name == "ring"
    assert [s.algorithm for s in naming.scores] == ["ring", "recursive doubling"]
    assert naming.scores[0].criterion < naming.scores[1].criterion
    assert naming.world_sizes == (2, 4, 8)
    assert naming.ranges_bytes == ((8, 1 << 28),) * 3
    assert LawNaming.model_validate_json(naming.model_dump_json()) == naming


def test_times_exactly_alike_are_no_law():
    points = [p for n in (2, 4, 8) for p in sweep(sizes(5), [1e-5] * 5, world_size=n)]
    assert name_law(points).name is None


def test_the_only_law_of_an_operation_is_not_told_from_another():
    points = at_several_sizes(LAWS["all_to_all", "pairwise"], (2, 4, 8), 7, op="all_to_all")
    naming = name_law(points)
    assert naming.name is None
    assert "no other law" in naming.reason


def test_small_messages_can_be_judged_by_themselves():
    """Tree below the change, ring above: each regime has its own algorithm."""
    small = at_several_sizes(LAWS["all_reduce", "binomial tree"], (2, 4, 8), 8)
    large = at_several_sizes(ring_all_reduce, (2, 4, 8), 9)
    points = [p for p in small if p.size_bytes < 200_000]
    points += [p for p in large if p.size_bytes > 200_000]
    naming = name_law(points, regime="smallest")
    assert all(high < 10**6 for _, high in naming.ranges_bytes)
    assert naming.name == "binomial tree"


def test_poor_fits_are_said_with_the_name():
    points = at_several_sizes(ring_all_reduce, (2, 4), 11)
    exact = [ring_all_reduce(8).time_s(int(d), 1e-5, 1e9) for d in sizes(20)]
    wild = np.where(np.arange(20) % 2, 1.4, 0.7) * exact
    naming = name_law([*points, *sweep(sizes(20), wild, world_size=8)])
    assert naming.reason.endswith("; the fits at N = 8 are poor")


def test_sizes_that_could_not_be_fitted_are_said():
    points = at_several_sizes(ring_all_reduce, (2, 4, 8), 10)
    naming = name_law([*points, point(8, 1e-3, world_size=16)])
    assert naming.world_sizes == (2, 4, 8)
    assert "16 ranks" in naming.left_out[0]
    with pytest.raises(UsageError, match="3 or more are needed"):
        name_law([point(8, 1e-3)])
    with pytest.raises(UsageError, match="no point was given"):
        name_law([])
    with pytest.raises(UsageError, match="points of one kind"):
        name_law([*points, *sweep(sizes(5), line(sizes(5)), dtype="bfloat16")])
