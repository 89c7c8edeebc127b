"""What operations cost at numbers of ranks that were measured, and at others."""

import numpy as np
import pytest

from scalebench.costmodel.links.fitting import fit_links
from scalebench.costmodel.links.laws import ring_all_reduce, ring_gather
from scalebench.costmodel.links.times import LinkModel, NoFit
from tests.builders.link_sweeps import ALPHA_S, BANDWIDTH, at_several_sizes, sizes, sweep

SIZES = sizes(16, 1 << 10, 1 << 24)


def model_of(*world_sizes, drift=0.0, seed=1, law=ring_all_reduce, op="all_reduce"):
    points = at_several_sizes(law, world_sizes, seed, drift, op, SIZES)
    return LinkModel(fit_links(points).fits)


@pytest.mark.parametrize("world_size", [2, 4, 8, 64])
def test_it_follows_the_law_to_sizes_and_ranks_that_were_not_measured(world_size):
    model = model_of(2, 4)
    for size in (3000, 10**6, 5 * 10**6):
        truth = ring_all_reduce(world_size).time_s(size, ALPHA_S, BANDWIDTH)
        found = model.time("all_reduce", world_size, size)
        assert found.time_s == pytest.approx(truth, rel=0.12)
        assert found.low_s <= found.time_s <= found.high_s


@pytest.mark.parametrize(("world_size", "nearest"), [(3, 2), (4, 2), (40, 64), (200, 64)])
def test_between_two_measured_numbers_the_nearer_one_answers(world_size, nearest):
    """At 64 ranks the links were twice as slow."""
    exact = {
        n: [ring_all_reduce(n).time_s(int(d), ALPHA_S, BANDWIDTH) for d in SIZES] for n in (2, 64)
    }
    points = sweep(SIZES, np.array(exact[2]), world_size=2)
    points += sweep(SIZES, 2 * np.array(exact[64]), world_size=64)
    model = LinkModel(fit_links(points).fits)
    truth = ring_all_reduce(world_size).time_s(10**6, ALPHA_S, BANDWIDTH)
    slower = 1 if nearest == 2 else 2
    assert model.time("all_reduce", world_size, 10**6).time_s == pytest.approx(
        slower * truth, rel=0.02
    )
    factor = ring_all_reduce(world_size).bytes_factor
    term = model.bandwidth_term("all_reduce", world_size, 10**6)
    assert term == pytest.approx(slower * factor * 10**6 / BANDWIDTH, rel=0.02)


def test_intervals_cover_what_the_law_gives_at_twice_the_ranks():
    truth = ring_all_reduce(8).time_s(10**6, ALPHA_S, BANDWIDTH)
    found = [model_of(2, 4, drift=0.02, seed=s).time("all_reduce", 8, 10**6) for s in range(40)]
    assert np.mean([f.low_s <= truth <= f.high_s for f in found]) >= 0.9


def test_below_forgets_a_number_of_ranks_and_all_larger_ones():
    model = model_of(2, 4, 8)
    assert model.world_sizes == (2, 4, 8)
    assert model.below(8).world_sizes == (2, 4)
    with pytest.raises(NoFit, match="no all_reduce was calibrated"):
        model.below(2).time("all_reduce", 2, 1000)


def test_each_operation_has_its_own_fit():
    with pytest.raises(NoFit, match="no all_gather"):
        model_of(2).time("all_gather", 2, 1000)
    gathers = model_of(2, law=ring_gather, op="all_gather")
    truth = ring_gather(2).time_s(10**6, ALPHA_S, BANDWIDTH)
    assert gathers.time("all_gather", 2, 10**6).time_s == pytest.approx(truth, rel=0.1)


def test_each_doubling_of_the_ranks_widens_the_interval_alike_and_the_first_counts_twice():
    """What one doubling moved, from 2 to 4 ranks, is what the next may move again."""
    model = model_of(2, 4, drift=0.05)
    found = [model.time("all_reduce", n, 10**7) for n in (4, 8, 16, 32)]
    widths = np.array([np.log(each.high_s / each.low_s) for each in found])
    own, *others = np.diff(widths)
    assert others == pytest.approx([own / 2] * 2, rel=0.1)
