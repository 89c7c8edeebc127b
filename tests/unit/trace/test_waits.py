"""Waits in the traces of any job: clocks by the ends of operations, and reasons where none."""

from dataclasses import replace

import pytest

from scalebench.trace.intervals import intervals, subtract, union
from scalebench.trace.timeline import Operation, Timeline
from scalebench.trace.waits import waits_of

MS = 1_000_000


def rank(*operations, compute=(), offset=0.0, world_size=2, steps=(), group_size=None):
    """A rank's timeline, in ms; its clock shows ``offset`` more than rank 0's."""

    def ns(time):
        return round((time + offset) * MS)

    return Timeline(
        operations=tuple(
            Operation("all_reduce", "x", ns(a), ns(b), num_bytes=8, group_size=group_size)
            for a, b in operations
        ),
        compute=union(intervals([(ns(a), ns(b)) for a, b in compute])),
        steps=intervals([(ns(a), ns(b)) for a, b in steps]),
        extent=(ns(0), ns(200)),
        world_size=world_size,
    )


def waits(*timelines):
    exposed = {r: subtract(t.communication, t.compute) for r, t in enumerate(timelines)}
    return waits_of(dict(enumerate(timelines)), exposed)


def test_the_wait_is_found_though_the_clocks_are_hours_apart():
    early = rank((10, 50), (100, 130), (150, 152), compute=[(0, 20)])
    late = rank((40, 50), (100, 130), (150, 152), offset=7.2e6)
    found = waits(early, late)
    assert found.reason is None
    assert found.ranks[0].wait_s == pytest.approx(0.020)
    assert found.ranks[0].exposed_transfer_s == pytest.approx(0.010 + 0.030 + 0.002)
    assert found.ranks[1].wait_s == pytest.approx(0.0)
    assert found.clock_error_s == 0


@pytest.mark.parametrize(
    ("timelines", "reason"),
    [
        ([rank((10, 50))], "one rank does not show when the others arrived"),
        ([rank((10, 50)), rank()], "rank 0 has 1 all_reduce where rank 1 has 0"),
        ([rank((10, 50), world_size=128), rank((10, 50), world_size=128)], "no operation is in"),
        ([rank(), rank()], "no operation is known in which ranks wait for each other"),
        ([rank((1, 5), world_size=None)] * 2, "do not say how many ranks the job has"),
        ([replace(rank((1, 5)), num_groups=3)] * 2, "how many ranks the operations go between"),
    ],
)
def test_where_waits_cannot_be_told_the_reason_is(timelines, reason):
    found = waits(*timelines)
    assert (found.ranks, found.clock_error_s, found.stragglers) == ({}, 0.0, ())
    assert reason in found.reason
