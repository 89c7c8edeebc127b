"""What the self-test makes of measurements: against laws with known constants."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.records.certificate import Line, judged
from scalebench.records.probes import TimedTransfer
from scalebench.session.selftest import Part, self_test
from scalebench.session.selftest.full import LAUNCHES, NUM_TIMES, speedup_again
from scalebench.session.selftest.links import slowest_host, told_rate
from scalebench.spec.probes import Transfer


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
    found, noise = told_rate(smaller, larger)
    assert found == pytest.approx(bit_per_s, rel=1e-3)
    assert noise < 1e-3


@given(st.integers(2, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))))
def test_the_host_behind_a_slow_link_is_named(hosts_and_slow):
    num_hosts, slow = hosts_and_slow
    pairs = {
        (a, b): 30.0 if slow in (a, b) else 100.0 + a + b
        for a in range(num_hosts)
        for b in range(a + 1, num_hosts)
    }
    named = slowest_host(pairs)
    assert named == slow or num_hosts == 2  # two hosts have one link's rate between them


def part_of(*attempts):
    """A part whose attempts have these outcomes, one after the other."""
    left = list(attempts)

    def experiment(_):
        yield Line(name="a", passed=left.pop(0), detail=f"attempt {len(attempts) - len(left)}")
        yield Line(name="b", passed=True)

    return Part("part", experiment)


@pytest.mark.parametrize(
    ("attempts", "passed"),
    [((True,), True), ((False, True), True), ((False, False), False), ((None,), None)],
)
def test_a_failure_has_to_show_twice(monkeypatch, attempts, passed):
    monkeypatch.setattr("scalebench.session.selftest.PARTS", (part_of(*attempts),))
    bench = SimpleNamespace(inject=lambda what: None)
    first, second = self_test(bench, "quick", 5, {}, lambda *_: None).lines
    assert first.passed is passed
    assert second.passed is True
    assert ("second attempt" in first.detail) == (len(attempts) == 2)


class Repeating:
    """A bench on which two hosts take 1.25 times as long as one, but for one of the speedups."""

    detectable = 0.006

    def __init__(self, off):
        self.of_two = iter([0.1 * (1 + off)] * LAUNCHES + [0.1] * LAUNCHES * (NUM_TIMES - 1))

    def step_s(self, num_ranks, hosts, plan, rank_batch):
        return 0.08 if num_ranks == 1 else next(self.of_two)


@pytest.mark.parametrize(
    ("off", "passed"), [(0.01, True), (0.019, None), (0.024, None), (0.03, False)]
)
def test_a_speedup_is_said_to_repeat_as_far_as_the_machine_lets_it(monkeypatch, off, passed):
    monkeypatch.setattr("scalebench.session.selftest.full.launch_step_s", lambda seconds: seconds)
    (line,) = map(judged, speedup_again(Repeating(off)))
    assert line.passed is passed
    assert line.recovered == pytest.approx(1 / (1 + off) - 1)
    assert line.detail == "the farthest of 5 from 1.600"
