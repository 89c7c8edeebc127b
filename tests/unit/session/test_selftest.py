"""What the self-test makes of measurements: against laws with known constants."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.records.certificate import Line
from scalebench.records.measured.probes import TimedTransfer
from scalebench.session.selftest import Experiments, self_test
from scalebench.session.selftest.links import measured_rate
from scalebench.spec.probes import Transfer
from tests.examples import cases


def timed(size_bytes, times):
    transfer = Transfer(operation="send_recv", size_bytes=size_bytes)
    return TimedTransfer(
        transfer=transfer, size_bytes=size_bytes, time_s=times, num_elements=1, num_wrong=0
    )


@given(
    st.floats(min_value=1e6, max_value=1e11),
    st.floats(min_value=0, max_value=1e-2),
    st.integers(min_value=10_000, max_value=10_000_000),
)
def test_two_sizes_tell_the_rate_whatever_an_operation_costs(bit_per_s, alpha_s, size):
    smaller, larger = (timed(n, [alpha_s + 8 * n / bit_per_s] * 5) for n in (size, 4 * size))
    found, noise = measured_rate(smaller, larger)
    assert found == pytest.approx(bit_per_s, rel=1e-3)
    assert noise < 1e-3


def part_of(*attempts):
    """A part whose attempts have these outcomes, one after the other."""
    left = list(attempts)

    def experiment(_):
        yield Line(name="a", passed=left.pop(0), detail=f"attempt {len(attempts) - len(left)}")
        yield Line(name="b", passed=True)

    return Experiments("part", experiment)


@cases(
    "attempts, passed",
    ((True,), True),
    ((False, True), True),
    ((False, False), False),
    ((None,), None),
)
def test_a_failure_has_to_show_twice(monkeypatch, attempts, passed):
    monkeypatch.setattr("scalebench.session.selftest.PARTS", (part_of(*attempts),))
    bench = SimpleNamespace(inject=lambda what: None)
    first, second = self_test(bench, "quick", 5, {}, lambda *_: None).lines
    assert first.passed is passed
    assert second.passed is True
    assert ("second attempt" in first.detail) == (len(attempts) == 2)
