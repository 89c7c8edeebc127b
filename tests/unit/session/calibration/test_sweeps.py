from itertools import product
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.summarise import summarise
from scalebench.costmodel.links.profile import LinkProfile, point_of, profile_of
from scalebench.errors import ExitCode, UsageError
from scalebench.records.certificate import Line
from scalebench.records.measured.probes import TimedTransfer
from scalebench.report import render_table
from scalebench.session.calibration.sweeps import Sweeps, cut_short, measured_profile, sizes_up_to
from scalebench.session.plan import Machine, Request, make_plan
from scalebench.session.selftest import Experiments, self_test
from scalebench.session.selftest.losses import measured_rate
from scalebench.session.storing.finish import Run
from scalebench.spec import Collectives, Suite
from scalebench.spec.probes import Transfer
from tests.builders.runs import make_run
from tests.examples import cases

ALPHA_S, BANDWIDTH = 20e-6, 1e9


def point(size_bytes, time_s, algorithm="backend", operation="all_reduce", num_ranks=2, wrong=0):
    transfer = Transfer(operation=operation, size_bytes=size_bytes, algorithm=algorithm)
    timed = TimedTransfer(
        transfer=transfer,
        size_bytes=size_bytes,
        time_s=(time_s,) * 5,
        each_s=(time_s,) * 10,
        num_elements=size_bytes // 4,
        num_wrong=wrong,
    )
    return point_of(timed, num_ranks, "")


def line(algorithm="backend"):
    """All-reduces of two ranks by the ring's law."""
    sizes = sizes_up_to(1 << 22)
    return [point(size, 2 * ALPHA_S + size / BANDWIDTH, algorithm) for size in sizes]


def test_what_the_time_limit_left_out_is_told_for_each_number_of_ranks():
    sizes, operations = tuple(1 << n for n in (16, 18, 20, 22)), ("all_reduce", "all_gather")
    asked = {"sizes": dict.fromkeys(operations, sizes), "in_place": False, "time_limit_s": 30.0}
    sweeps = Sweeps((2, 4), operations, ("float32",), 1 << 22, **asked)
    points = [
        point(size, 0.01, operation=op, num_ranks=n)
        for op, n, size in product(operations, (2, 4), sizes)
    ]
    assert cut_short(points, sweeps, "cpu") == ()
    slow = [p for p in points if (p.op, p.world_size) != ("all_gather", 4) or p.size_bytes < 1e6]
    (told,) = cut_short(slow, sweeps, "cpu")
    assert "N=4" in told and "30 s" in told and "all_gather up to 262 kB of 4.19 MB" in told
    assert "all_reduce" not in told
    profile = measured_profile(slow, sweeps, "cpu", 2, {})
    assert profile.cut_short == (told,)
    assert LinkProfile.model_validate_json(profile.model_dump_json()).cut_short == (told,)


CPU_4 = Machine(num_gpus=0, num_cores=4)
LINKS = Suite(name="links", question="What do links cost?", collectives=Collectives())


def planned(*suites, **request):
    return make_plan(Request(**{"world_sizes": (2, 4)} | request), suites, CPU_4)


def test_k_chooses_operations():
    chosen = planned(LINKS, selection="reduce and not all").spec.suites[0].collectives
    assert chosen.operations == ("reduce_scatter", "reduce")


def test_links_that_are_measured_cannot_be_given():
    with pytest.raises(UsageError, match=r"measures the links itself, and --link-profile"):
        planned(LINKS, link_profile="link.json")


def timed_run(points, **stored):
    run = make_run([])
    spec = run.info.spec.model_copy(update={"suites": (LINKS,)})
    run.info = run.info.model_copy(update={"spec": spec})
    if points:
        told = {"created": "2024-05-01", "version": "0", "device": "cpu", "backend": "gloo"}
        run.link = profile_of(points, (), **told)
    for name, value in stored.items():
        setattr(run, name, value)
    return Run(run.paths, summarise(run))


@cases(
    "points, stored, said",
    ([*line(), point(64, 1e-5, wrong=3)], {}, "3 elements of results are wrong"),
    (
        [],
        {"link_unavailable": "calibrating failed: rank 1 died"},
        "calibrating failed: rank 1 died",
    ),
)
def test_a_wrong_element_and_links_that_could_not_be_timed_fail_the_run(points, stored, said):
    run = timed_run(points, **stored)
    assert run.exit_code is ExitCode.CELLS_FAILED
    assert f"failed: {said}" in render_table(run.summary)
    assert (run.summary.collectives.num_points == 0) == (not points)


@given(st.floats(1e6, 1e11), st.floats(0, 1e-2), st.integers(10_000, 10_000_000))
def test_two_sizes_tell_the_rate_whatever_an_operation_costs(bit_per_s, alpha_s, size):
    smaller, larger = (
        TimedTransfer(
            transfer=Transfer(operation="send_recv", size_bytes=n),
            **{"size_bytes": n, "time_s": [alpha_s + 8 * n / bit_per_s] * 5},
            **{"num_elements": 1, "num_wrong": 0},
        )
        for n in (size, 4 * size)
    )
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
