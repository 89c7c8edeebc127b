"""Laws of speedup, fitted to points that obey them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.costmodel.scaling_laws import (
    constant_efficiency,
    fit_all,
    fit_amdahl,
    fit_gustafson,
    fit_usl,
)
from scalebench.errors import UsageError

SIZES = (2, 4, 8)
share = st.floats(0.0, 1.0)


@given(share)
def test_amdahl_finds_the_serial_share(serial):
    law = fit_amdahl(SIZES, [1 / (serial + (1 - serial) / n) for n in SIZES])
    assert law.parameters["serial"] == pytest.approx(serial, abs=1e-9)
    assert law.speedup(1) == pytest.approx(1.0)
    assert law.speedup(64) == pytest.approx(1 / (serial + (1 - serial) / 64))


@given(share)
def test_gustafson_finds_the_serial_share(serial):
    law = fit_gustafson(SIZES, [n - serial * (n - 1) for n in SIZES])
    assert law.parameters["serial"] == pytest.approx(serial, abs=1e-9)
    assert law.speedup(64) == pytest.approx(64 - 63 * serial)


@given(st.floats(0.0, 0.5), st.floats(0.0, 0.1))
def test_usl_finds_contention_and_coherency(sigma, kappa):
    law = fit_usl(SIZES, [n / (1 + sigma * (n - 1) + kappa * n * (n - 1)) for n in SIZES])
    assert law.parameters["sigma"] == pytest.approx(sigma, abs=1e-7)
    assert law.parameters["kappa"] == pytest.approx(kappa, abs=1e-7)
    assert law.speedup(64) == pytest.approx(64 / (1 + 63 * sigma + 64 * 63 * kappa), rel=1e-3)


def test_usl_has_a_peak_that_amdahl_has_not():
    points = [1.8, 2.6, 2.2]
    assert fit_usl(SIZES, points).speedup(32) < 2.2 < fit_amdahl(SIZES, points).speedup(32)


def test_constant_efficiency_is_that_of_the_largest():
    assert constant_efficiency((4, 2), (3.0, 1.9)).speedup(100) == pytest.approx(75.0)


def test_speedups_beyond_ideal_give_no_negative_share():
    for law in fit_all([1, 2, 4], [1.0, 2.2, 4.6]):
        assert all(value >= 0 for value in law.parameters.values())


@pytest.mark.parametrize(("sizes", "speedups"), [([], []), ([1], [1.0]), ([2], [0.0])])
def test_too_little_to_fit_is_said(sizes, speedups):
    with pytest.raises(UsageError, match="2 ranks or more"):
        fit_all(sizes, speedups)


def test_a_case_that_slows_down_is_fitted_like_any_other():
    for law in fit_all([1, 2], [1.0, 0.8]):
        assert law.speedup(2) <= 1.0


def test_a_share_ends_at_none_and_at_all():
    assert fit_amdahl((2,), (0.5,)).parameters == {"serial": 1.0}
    assert fit_amdahl((2,), (3.0,)).parameters == {"serial": 0.0}
    assert fit_gustafson((4,), (0.5,)).parameters == {"serial": 1.0}
    assert fit_gustafson((4,), (5.0,)).parameters == {"serial": 0.0}


@pytest.mark.parametrize("speedups", [[1.0, 1.8, 0.0], [1.0, -0.5, 3.0]])
def test_every_speedup_must_be_positive(speedups):
    with pytest.raises(UsageError, match="positive speedup"):
        fit_all([1, 2, 4], speedups)


def test_every_size_has_its_speedup():
    with pytest.raises(ValueError, match="shorter"):
        fit_all([1, 2, 4], [1.0, 1.9])


def test_least_squares_by_hand():
    """Amdahl, x = 1 - 1/N and y = 1/S - 1/N: (½·¼ + ⅘·⅒) / (¼ + 16/25) at 2 and 5 ranks.

    Gustafson, x = N - 1 and y = N - S: (1·⅔ + 4·5/3) / (1 + 16).
    """
    sizes, speedups = (2, 5), (4 / 3, 10 / 3)
    amdahl, gustafson, usl, constant = fit_all([1, *sizes], [1.0, *speedups])
    serial = (0.5 * 0.25 + 0.8 * 0.1) / (0.25 + 0.64)
    assert amdahl.parameters == {"serial": pytest.approx(serial)}
    assert amdahl.speedup(3) == pytest.approx(1 / (serial + (1 - serial) / 3))
    scaled = (2 / 3 + 4 * 5 / 3) / 17
    assert gustafson.parameters == {"serial": pytest.approx(scaled)}
    assert gustafson.speedup(3) == pytest.approx(3 - 2 * scaled)
    # N/S - 1 is ½ at both: σ + 2κ and 4σ + 20κ; κ would be negative, so σ = (½ + 2) / 17
    assert usl.parameters == {"sigma": pytest.approx(2.5 / 17), "kappa": 0.0}
    assert usl.speedup(3) == pytest.approx(3 / (1 + 2 * 2.5 / 17))
    assert constant.parameters == {"efficiency": pytest.approx(2 / 3)}
    assert constant.speedup(3) == pytest.approx(2.0)
    names = [law.name for law in (amdahl, gustafson, usl, constant)]
    assert names == ["Amdahl", "Gustafson", "USL", "constant efficiency"]
