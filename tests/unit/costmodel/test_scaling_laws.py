import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.costmodel.what_if import fit_all, fit_amdahl, fit_gustafson, fit_usl
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


def test_too_little_to_fit_and_speedups_below_zero_are_refused():
    for sizes, speedups in (([], []), ([1], [1.0]), ([2], [0.0])):
        with pytest.raises(UsageError, match="2 ranks or more"):
            fit_all(sizes, speedups)
    for speedups in ([1.0, 1.8, 0.0], [1.0, -0.5, 3.0]):
        with pytest.raises(UsageError, match="positive speedup"):
            fit_all([1, 2, 4], speedups)
