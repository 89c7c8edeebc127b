"""Parts of a step, and what is taken off them: single numbers, each part another one."""

import pytest

from scalebench.analysis.attribution import LaunchAttribution
from scalebench.analysis.step_parts import (
    StepParts,
    clean_parts,
    off_gaps,
    off_work,
    traced_parts,
)
from scalebench.trace.breakdown import Breakdown
from tests.builders.traced import make_operation, make_trace, make_traced_record, make_traced_result

NAMES = ("compute_s", "exposed_transfer_s", "wait_s", "codec_s", "data_stall_s", "other_idle_s",
         "bubble_s", "copies_s")  # fmt: skip


def parts(*seconds):
    return StepParts(**dict(zip(NAMES, seconds, strict=True)))


def seconds(found):
    return tuple(getattr(found, name) for name in NAMES)


STEP = parts(40, 7, 5, 20, 3, 30, 10, 2)


def test_the_sum_is_that_of_all_parts_or_of_those_that_are_named():
    assert STEP.total_s == 117
    assert STEP.sum_of(("wait_s", "copies_s")) == 7
    assert STEP.sum_of(()) == 0
    assert StepParts(1, 2, 3, 4, 5, 6).total_s == 21, "no bubble and no copies unless told"
    assert STEP.times(3, ("wait_s", "copies_s")) == parts(40, 7, 15, 20, 3, 30, 10, 6)


@pytest.mark.parametrize(
    ("added_s", "found", "removed_s"),
    [
        (0, (40, 7, 5, 20, 3, 30, 10, 2), 0),
        (10, (36, 7, 5, 18, 3, 27, 9, 2), 10),
        (50, (20, 7, 5, 10, 3, 15, 5, 2), 50),
        (99, (20, 7, 5, 10, 3, 15, 5, 2), 50),
    ],
)
def test_of_a_hosts_hundred_seconds_at_most_half_is_taken_in_proportion(added_s, found, removed_s):
    left, removed = off_work(STEP, added_s)
    assert seconds(left) == pytest.approx(found) and removed == removed_s


def test_where_the_host_did_nothing_nothing_is_taken():
    nothing = parts(0, 7, 5, 0, 3, 0, 0, 2)
    assert off_work(nothing, 4.0) == (nothing, 0.0)


@pytest.mark.parametrize(
    ("added_s", "found", "removed_s"),
    [
        (0, (40, 7, 5, 20, 3, 30, 10, 2), 0),
        (29, (40, 7, 5, 20, 3, 1, 10, 2), 29),
        (32, (40, 7, 5, 20, 1, 0, 10, 2), 32),
        (35, (40, 7, 5, 20, 0, 0, 8, 2), 35),
        (43, (40, 7, 5, 20, 0, 0, 0, 2), 43),
        (49, (36, 7, 5, 18, 0, 0, 0, 2), 49),
        (73, (20, 7, 5, 10, 0, 0, 0, 2), 73),
        (99, (20, 7, 5, 10, 0, 0, 0, 2), 73),
    ],
)
def test_of_a_gpu_the_gaps_go_first_and_then_half_of_the_kernels(added_s, found, removed_s):
    left, removed = off_gaps(STEP, added_s)
    assert seconds(left) == pytest.approx(found) and removed == pytest.approx(removed_s)


TRACED = Breakdown(
    rank=0, num_steps=3, step_s=200, compute_s=60, busy_s=40, comm_s=31, exposed_comm_s=22,
    exposed_transfer_s=7, wait_s=5, codec_s=20, data_stall_s=3, other_idle_s=30, bubble_s=10,
    copies_s=9, copies_alone_s=2,
)  # fmt: skip


def test_a_traced_step_in_parts():
    assert traced_parts(TRACED, apart=True) == parts(40, 7, 5, 20, 3, 30, 10, 2)
    assert traced_parts(TRACED, apart=False) == parts(40, 12, 0, 20, 3, 30, 10, 2)


def launch(paired=80.0, traced=None):
    """Two ranks whose traced steps take 100 ms: 60 of computation, 25 of waiting, 5 of transfer."""
    records = [
        make_traced_record(
            rank,
            make_trace([make_operation(at, 95)], [(0, 60)], steps=[(0, 100)]),
            clean=40,
            paired=paired,
            traced=traced,
        )
        for rank, at in enumerate((65, 90))
    ]
    return LaunchAttribution(make_traced_result(*records))


def test_a_clean_step_on_cpu_by_hand():
    """Of 100 ms tracing adds 20, off 60 of computation and 10 of idle time; 80 become 40."""
    found = clean_parts(launch(), 0, 0.040)
    work = 50 / 70
    assert seconds(found) == pytest.approx((0.030 * work, 0.0025, 0.0125, 0, 0, 0.005 * work, 0, 0))
    assert found.total_s == pytest.approx(0.040)
    together = clean_parts(launch(), 0, 0.040, apart=False)
    assert (together.exposed_transfer_s, together.wait_s) == pytest.approx((0.015, 0.0))


def test_steps_that_tracing_did_not_make_longer_are_scaled_alone():
    """The clean steps next to the traced ones took longer than they."""
    found = clean_parts(launch(paired=125), 0, 0.050)
    assert seconds(found) == pytest.approx((0.030, 0.0025, 0.0125, 0, 0, 0.005, 0, 0))


def test_what_the_loops_clock_saw_and_the_trace_did_not_is_in_no_part():
    """By the loop's clock the traced steps took 125 ms, 100 of them are in the trace."""
    found = clean_parts(launch(paired=125, traced=125), 0, 0.050)
    assert found.total_s == pytest.approx(0.050 * 100 / 125)
