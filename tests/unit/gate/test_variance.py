"""What is typical of the rows of a run, next to a plain second way to work it out."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, special

from scalebench.gate.observation import Measured
from scalebench.gate.variance import typical_variance
from scalebench.stats import Variance


def by_loops(rows):
    """The docstring of `typical_variance`, number by number: value and degrees of freedom."""
    logs, noises = [], []
    for row in rows:
        logs.append(math.log(row.value) - special.digamma(row.dof / 2) + math.log(row.dof / 2))
        noises.append(special.polygamma(1, row.dof / 2))
    knowledge = sum(1 / noise for noise in noises)
    weights = [1 / noise / knowledge for noise in noises]
    center = sum(w * log for w, log in zip(weights, logs, strict=True))
    spread = sum(w * (log - center) ** 2 for w, log in zip(weights, logs, strict=True))
    by_chance = sum(w * (1 - w) * noise for w, noise in zip(weights, noises, strict=True))
    excess = (spread - by_chance) / (1 - sum(w * w for w in weights))
    dof = sum(row.dof for row in rows)
    if excess > 0:
        dof = min(dof, 2 * optimize.brentq(lambda x: special.polygamma(1, x) - excess, 1e-6, 1e9))
    return math.exp(center + special.digamma(dof / 2) - math.log(dof / 2)), dof


variances = st.builds(
    Variance, st.sampled_from([0.01, 0.3, 1.0, 7.0, 500.0]), st.sampled_from([1.0, 2.0, 4.0, 9.0])
)


@given(st.lists(variances, min_size=3, max_size=7))
def test_rows_that_differ_in_what_they_know_are_weighed_by_it(rows):
    found, (value, dof) = typical_variance(rows), by_loops(rows)
    assert found.value == pytest.approx(value, rel=1e-6)
    assert found.dof == pytest.approx(dof, rel=1e-6)


RUNS = (
    Measured(1.0, 2, Variance(0.5, 1.0), within=0.01, values=(0.5, 1.5)),
    Measured(2.0, 4, Variance(0.1, 3.0), within=0.02),
    Measured(6.0, 5, None, within=0.06),
)
"""The variance of the centres is 7: their mean is 3, the distances to it 2, 1 and 3."""

PART = 0.4 * (1 / 2 + 1 / 4 + 1 / 5) / 3
"""What launches with a variance of 0.4 add to it."""
