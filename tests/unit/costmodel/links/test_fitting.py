import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import least_squares

from scalebench.costmodel.links.fitted import LinkFit, crossovers
from scalebench.costmodel.links.fitting import fit_link, fit_links
from scalebench.costmodel.links.laws import LAWS
from scalebench.errors import UsageError
from tests.builders.links.link_sweeps import ALPHA_S, BANDWIDTH, line, noisy, point, sizes, sweep
from tests.examples import cases

CHANGE = 200_000
LAWS_WITH_LATENCY = [law for law in LAWS if law != ("all_reduce", "parameter server")]


def protocols(size):
    """Slow and eager below the change, fast and with a handshake above."""
    return np.where(size < CHANGE, 2e-5 + size / 1e8, 2e-4 + size / BANDWIDTH)


@cases("law", *LAWS_WITH_LATENCY, ids=" ".join)
def test_an_exact_law_comes_back_exactly(law):
    op, algorithm = law
    for n in (2, 8):
        times = [LAWS[law](n).time_s(d, ALPHA_S, BANDWIDTH) for d in sizes(6)]
        fit = fit_link(sweep(sizes(6), times, op=op, world_size=n), algorithm)
        (regime,) = fit.regimes
        assert regime.alpha_s == pytest.approx(ALPHA_S, rel=1e-9)
        assert regime.bandwidth_byte_per_s == pytest.approx(BANDWIDTH, rel=1e-9)
        assert fit.law == algorithm
        assert fit.poor is None
        assert fit.error_ratio < 1e-9


@given(
    latency=st.floats(1e-7, 1e-2),
    slope=st.floats(1e-12, 1e-6),
    sigma=st.floats(0.0, 0.3),
    seed=st.integers(0, 10**6),
    count=st.integers(3, 30),
)
def test_a_line_is_where_scipy_finds_it(latency, slope, sigma, seed, count):
    size = np.geomspace(8, 2**28, count).round()
    noise = sigma * np.random.default_rng(seed).standard_normal(count)
    times = (latency + slope * size) * np.exp(noise)
    fit = fit_link(sweep(size.astype(int), times))
    steps, factor = fit.terms
    for regime in fit.regimes:
        kept = (size >= regime.min_bytes) & (size <= regime.max_bytes)
        kept &= ~np.isin(size, regime.set_aside_bytes)

        def residuals(scaled, kept=kept):
            return np.log(times[kept] / (scaled[0] * latency + scaled[1] * slope * size[kept]))

        found = [
            steps * regime.alpha_s / latency,
            factor / (regime.bandwidth_byte_per_s or np.inf) / slope,
        ]
        theirs = least_squares(residuals, [1.0, 1.0], bounds=(0, np.inf), xtol=1e-12, ftol=1e-12)
        assert sum(residuals(found) ** 2) <= 2 * theirs.cost * (1 + 1e-6) + 1e-15
        assert min(found) >= 0


@given(
    st.lists(
        st.tuples(st.integers(1, 2**40), st.floats(1e-9, 1e4)),
        min_size=3,
        max_size=40,
        unique_by=lambda pair: pair[0],
    )
)
def test_whatever_was_measured_is_fitted_to_numbers_that_can_be_stored(pairs):
    fit = fit_link([point(size, time) for size, time in pairs])
    sizes_ = sorted(size for size, _ in pairs)
    assert LinkFit.model_validate_json(fit.model_dump_json()) == fit
    assert sizes_[0] <= fit.regimes[0].min_bytes <= fit.regimes[-1].max_bytes <= sizes_[-1]
    for regime in fit.regimes:
        assert np.isfinite([regime.alpha_s, regime.alpha_high_s, regime.error_ratio]).all()
        assert regime.alpha_low_s <= regime.alpha_s <= regime.alpha_high_s
    for size in (*sizes_, 2 * sizes_[-1]):
        assert 0 < fit.predict(size).time_s < np.inf


def test_a_prediction_inside_between_and_beyond():
    fit = fit_link(sweep(sizes(25), noisy(protocols(sizes(25)), 0.03, np.random.default_rng(4))))
    small, large = fit.regimes
    for size in (1000, 10**7):
        inside = fit.predict(size)
        assert inside.outside is None
        assert inside.low_s < inside.time_s < inside.high_s
        assert inside.time_s == pytest.approx(float(protocols(np.array(size))), rel=0.05)
    gap = fit.predict((small.max_bytes * large.min_bytes) ** 0.5)
    assert "changes from one regime to the next" in gap.outside
    slow, fast = fit.predict(small.max_bytes).time_s, fit.predict(large.min_bytes).time_s
    assert gap.low_s < min(slow, fast) * 1.4
    assert gap.high_s > max(slow, fast) * 0.9
    for size in (1, 1 << 33):
        beyond = fit.predict(size)
        assert (beyond.low_s, beyond.high_s) == (None, None)
        assert "outside the fitted sizes, 8.00 B to 268 MB" in beyond.outside
        assert beyond.time_s == pytest.approx(float(protocols(np.array(size))), rel=0.05)


def test_a_scattered_fit_calls_itself_poor():
    times = noisy(line(sizes(20)), 0.4, np.random.default_rng(5))
    assert "off the line" in fit_link(sweep(sizes(20), times)).poor
    busy = line(sizes(20))
    busy[::5] *= 3
    assert "4 of 20 sizes were too slow" in fit_link(sweep(sizes(20), busy)).poor


REFUSALS = [
    (sweep(sizes(2), line(sizes(2))), None, "2 sizes given, 3 or more are needed"),
    ([], None, "no points to fit: 3 sizes or more"),
    (sweep(sizes(5), line(sizes(5)), world_size=1), None, "one rank sends nothing"),
    (sweep(sizes(5), line(sizes(5)), op="barrier"), None, "no law for this operation"),
    (sweep(sizes(5), line(sizes(5)), num_wrong=3), None, "0 sizes with right results"),
    (sweep(sizes(5), line(sizes(5))), "rings", "no law 'rings'; valid: ring"),
    (sweep(sizes(5), line(sizes(5))), "parameter server", "has no latency term"),
    (
        [*sweep(sizes(5), line(sizes(5))), point(8, 1.0, dtype="bfloat16")],
        None,
        "points of one kind",
    ),
]


@cases("points, law, text", *REFUSALS, ids=[r[2] for r in REFUSALS])
def test_what_cannot_be_fitted_is_refused_with_the_reason(points, law, text):
    with pytest.raises(UsageError, match=text):
        fit_link(points, law)


SIZE = sizes(20)


def all_reduce(algorithm, latency_s, bandwidth, **fields):
    return sweep(SIZE, latency_s + SIZE / bandwidth, algorithm=algorithm, **fields)


@cases(
    "name, values", ("world_size", (2, 4)), ("dtype", ("float32", "bfloat16")), ("link", ("a", "b"))
)
def test_lines_of_other_ranks_types_and_links_predict_nothing_here(name, values):
    """The second's two algorithms are those of the first, the other way round."""
    one, other = ({name: value} for value in values)
    quick, wide = (1e-5, 1e8), (1e-4, 1e9)
    points = [
        *(*all_reduce("tree", *quick, **one), *all_reduce("ring", *wide, **one)),
        *(*all_reduce("ring", *quick, **other), *all_reduce("tree", *wide, **other)),
    ]
    found = crossovers(points, fit_links(points)[0])
    assert [winner.measured for winner in found] == ["tree", "ring", "ring", "tree"]
    assert [winner.predicted for winner in found] == ["tree", "ring", "ring", "tree"]
