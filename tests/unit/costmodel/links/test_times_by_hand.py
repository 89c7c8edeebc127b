"""Times at any number of ranks, from fits that are written down and not fitted."""

import math

import pytest

from scalebench.costmodel.links.fitted import LinkFit, Regime
from scalebench.costmodel.links.laws import law_terms
from scalebench.costmodel.links.times import LinkModel, LinkTime, NoFit


def regime(alpha_s, bandwidth, low=100, high=10_000, freedom=5, scale=0.03):
    return Regime(
        min_bytes=low,
        max_bytes=high,
        num_sizes=freedom + 2,
        alpha_s=alpha_s,
        alpha_low_s=alpha_s,
        alpha_high_s=alpha_s,
        bandwidth_byte_per_s=bandwidth,
        bandwidth_low_byte_per_s=bandwidth,
        bandwidth_high_byte_per_s=bandwidth,
        error_ratio=0.0,
        worst_error_ratio=0.0,
        scale=scale,
        freedom=freedom,
        covariance=(0.0, 0.0, 0.0),
    )


def fit(world_size, *regimes, op="all_reduce", law="ring", dtype="float32", algorithm="backend"):
    return LinkFit(
        link="",
        op=op,
        dtype=dtype,
        world_size=world_size,
        algorithm=algorithm,
        in_place=None,
        law=law,
        regimes=regimes,
        num_points=9,
        error_ratio=0.0,
    )


THREE = fit(3, regime(2e-6, 1e9))
TWELVE = fit(12, regime(3e-6, 5e8, freedom=7, scale=0.05))
FIFTY = fit(50, regime(5e-6, 2e8, freedom=9, scale=0.02))


def ring(n, size, alpha_s, bandwidth):
    return 2 * (n - 1) * alpha_s + 2 * (n - 1) / n * size / bandwidth


def test_a_number_of_ranks_that_was_measured_has_its_fits_own_prediction():
    found = LinkModel([TWELVE, THREE]).time("all_reduce", 3, 5000)
    own = THREE.predict(5000)
    assert found == LinkTime(own.time_s, own.low_s, own.high_s, (3,), None, 5)
    assert found.time_s == pytest.approx(ring(3, 5000, 2e-6, 1e9))


def test_one_rank_takes_no_time_and_rests_on_nothing():
    assert LinkModel([]).time("all_reduce", 1, 5000) == LinkTime(0.0, 0.0, 0.0, ())
    two = fit(2, regime(2e-6, 1e9))
    assert LinkModel([two]).time("all_reduce", 2, 5000).time_s == pytest.approx(4e-6 + 5e-6)
    assert LinkTime(1.0, 1.0, 1.0, ()).dof == math.inf
    assert LinkTime(1.0, 1.0, 1.0, ()).outside is None


@pytest.mark.parametrize(("size", "first"), [(20, True), (400_000, False), (30_000, True)])
def test_beyond_the_fitted_sizes_the_nearest_regime_lends_its_interval_and_freedom(size, first):
    """Between 10 kB and 200 kB the middle is 44.7 kB."""
    small = regime(2e-6, 1e9, freedom=3)
    large = regime(8e-6, 4e9, 200_000, 300_000, freedom=8, scale=0.01)
    both = fit(3, small, large)
    its = small if first else large
    found = LinkModel([both]).time("all_reduce", 3, size)
    assert found.time_s == pytest.approx(its.time_s(size, both.terms))
    assert found.dof == its.freedom
    if size == 30_000:  # both regimes around the gap
        assert (found.low_s, found.high_s) == (both.predict(size).low_s, both.predict(size).high_s)
        assert "changes from one regime" in found.outside
    else:
        assert (found.low_s, found.high_s) == its.interval_s(size, both.terms)
        assert "outside the fitted sizes" in found.outside


def test_another_number_of_ranks_has_the_law_of_the_nearest_and_what_the_others_say():
    """Of 20 the nearest is 12, then 50, then 3: one and two doublings and more from 12."""
    found = LinkModel([FIFTY, THREE, TWELVE]).time("all_reduce", 20, 5000)
    center = ring(20, 5000, 3e-6, 5e8)
    by_three, by_fifty = ring(20, 5000, 2e-6, 1e9), ring(20, 5000, 5e-6, 2e8)
    moved = max(
        math.log(center / by_three) / math.log2(12 / 3),
        math.log(by_fifty / center) / math.log2(50 / 12),
    )
    reach = moved * (1 + math.log2(20 / 12))
    own = TWELVE.predict(5000)
    assert found.time_s == pytest.approx(center)
    assert found.low_s == pytest.approx(center * own.low_s / own.time_s * math.exp(-reach))
    assert found.high_s == pytest.approx(center * own.high_s / own.time_s * math.exp(reach))
    assert found.world_sizes == (3, 12, 50)
    assert found.outside is None
    assert found.dof == 7


def test_fewer_ranks_than_were_measured_are_as_far_away_as_more():
    """Of 6 ranks both 3 and 12 are one doubling away; the first in order answers."""
    found = LinkModel([THREE, TWELVE]).time("all_reduce", 6, 5000)
    center, other = ring(6, 5000, 2e-6, 1e9), ring(6, 5000, 3e-6, 5e8)
    reach = math.log(other / center) / 2 * (1 + 1)
    own = THREE.predict(5000)
    assert found.high_s == pytest.approx(center * own.high_s / own.time_s * math.exp(reach))


@pytest.mark.parametrize("world_size", [24, 13])
def test_what_others_would_have_said_counts_alike_if_it_is_less(world_size):
    found = LinkModel([TWELVE, THREE]).time("all_reduce", world_size, 5000)
    center, less = ring(world_size, 5000, 3e-6, 5e8), ring(world_size, 5000, 2e-6, 1e9)
    reach = math.log(center / less) / 2 * (1 + math.log2(world_size / 12))
    own = TWELVE.predict(5000)
    assert found.low_s == pytest.approx(center * own.low_s / own.time_s * math.exp(-reach))


def test_one_fit_alone_lends_its_interval_as_it_is():
    found = LinkModel([TWELVE]).time("all_reduce", 5, 20)
    own = TWELVE.regimes[0].interval_s(20, TWELVE.terms)
    time = TWELVE.predict(20).time_s
    center = ring(5, 20, 3e-6, 5e8)
    assert found.time_s == pytest.approx(center)
    assert (found.low_s, found.high_s) == pytest.approx(
        (center * own[0] / time, center * own[1] / time)
    )
    assert "outside the fitted sizes" in found.outside
    assert found.world_sizes == (12,)


def test_a_law_that_does_not_hold_for_so_many_ranks_is_no_fit():
    doubling = fit(4, regime(2e-6, 1e9), op="all_gather", law="recursive doubling")
    with pytest.raises(NoFit, match="power of two, not 6"):
        LinkModel([doubling]).time("all_gather", 6, 5000)
    with pytest.raises(NoFit, match="no all_reduce was calibrated"):
        LinkModel([doubling]).time("all_reduce", 4, 5000)


def test_the_wanted_type_is_preferred_and_own_algorithms_are_left_out():
    half = fit(3, regime(9e-6, 1e9), dtype="bfloat16")
    own = fit(5, regime(1e-6, 1e9), algorithm="tree")
    other = fit(7, regime(4e-6, 1e9), dtype="bfloat16")
    for fits in ([half, THREE, own, other], [own, other, THREE, half]):
        model = LinkModel(fits)
        assert model.world_sizes == (3, 7)
        assert model.time("all_reduce", 3, 5000).time_s == THREE.predict(5000).time_s
        assert model.time("all_reduce", 7, 5000).time_s == other.predict(5000).time_s
        wanted = LinkModel(fits, dtype="bfloat16")
        assert wanted.time("all_reduce", 3, 5000).time_s == half.predict(5000).time_s


def test_all_numbers_of_ranks_of_all_operations_are_known_and_fewer_can_be():
    gather = fit(7, regime(2e-6, 1e9), op="all_gather")
    model = LinkModel([FIFTY, TWELVE, gather, THREE])
    assert model.world_sizes == (3, 7, 12, 50)
    assert model.below(12).world_sizes == (3, 7)
    assert model.below(13).world_sizes == (3, 7, 12)
    assert model.below(13).time("all_reduce", 3, 800) == model.time("all_reduce", 3, 800)


class Played:
    """Stands for a rehearsal: all that is looked at is its number of ranks."""

    def __init__(self, world_size):
        self.world_size = world_size


def test_what_was_played_by_fewer_ranks_stays():
    played = [Played(3), Played(12), Played(5)]
    model = LinkModel([THREE], rehearsals=played)
    assert model.rehearsals == tuple(played)
    assert model.below(12).rehearsals == (played[0], played[2])


@pytest.mark.parametrize(
    ("times", "size", "as_if"),
    [(4, 8000, 2000), (3, 8000, 2667), (8000, 1000, 1), (0.5, 700, 1400)],
)
def test_a_link_of_more_bandwidth_treats_bytes_like_fewer(times, size, as_if):
    model = LinkModel([THREE])
    found = model.faster(times)("all_reduce", 3, size)
    assert found == model.time("all_reduce", 3, as_if)


def test_the_bandwidth_is_that_of_the_largest_sizes_at_the_nearest_ranks():
    """4.5 ranks are the middle between 3 and 7 — and 4 nearer to 3, 5 to 7."""
    several = fit(3, regime(2e-6, 1e9), regime(8e-6, 4e9, 20_000, 30_000))
    flat = fit(7, regime(5e-6, None))
    model = LinkModel([several, flat])
    assert model.bandwidth_byte_per_s("all_reduce", 4) == 4e9
    assert model.bandwidth_byte_per_s("all_reduce", 2) == 4e9
    with pytest.raises(NoFit, match="the times of all_reduce show no bandwidth"):
        model.bandwidth_byte_per_s("all_reduce", 5)
    with pytest.raises(NoFit, match="no broadcast was calibrated"):
        model.bandwidth_byte_per_s("broadcast", 3)


def test_the_bandwidth_term_has_no_latency():
    model = LinkModel([THREE, fit(12, regime(5e-6, None))])
    assert model.bandwidth_term("all_reduce", 4, 6000) == pytest.approx(1.5 * 6000 / 1e9)
    assert model.bandwidth_term("all_reduce", 20, 6000) == 0.0
    assert law_terms("all_reduce", "ring", 4).bytes_factor == 1.5
    two = fit(3, regime(2e-6, 1e9), regime(8e-6, 4e9, 20_000, 30_000))
    assert LinkModel([two]).bandwidth_term("all_reduce", 4, 6000) == pytest.approx(9e3 / 4e9)
