"""The phases of a failure follow one another without a gap, and a delay is found in its phase."""

import itertools

import pytest

from scalebench.records.fault_events import Event
from scalebench.session.recovery.faults import wanted_faults
from scalebench.session.recovery.timeline import NoTimeline, timeline_of
from scalebench.spec.recovery import PHASES, FaultPlan, Recovery
from scalebench.spec.virtual_hosts import VirtualHosts
from tests.builders.runs import make_cell

MS = 1_000_000
PLAN = FaultPlan(kind="kill", rank=1, at_step=6)
OUTSIDE = (100 * MS, 110 * MS, 160 * MS)
BEFORE = [
    [Event("step", n, n * 10 * MS) for n in range(1, 7)],
    [Event("step", n, n * 10 * MS) for n in range(1, 6)],
]


def continued(start=200, connected=20, built=40, load=50, step=10, saved=4, steps=3, data=5):
    """Return the events of a rank that was started again; each phase in ms."""
    parts = [start, connected, built, load - data, data, *[step] * steps]
    times = list(itertools.accumulate(parts))
    names = [("started", 77), ("connected", 0), ("built", 0), ("state", 0), ("loaded", saved)]
    names += [("step", saved + 1 + n) for n in range(steps)]
    return [Event(name, n, t * MS) for (name, n), t in zip(names, times, strict=True)]


def phases(*after, outside=OUTSIDE):
    return timeline_of(PLAN, "scalebench", outside, BEFORE, after or [continued(), continued()])


def test_each_phase_ends_when_the_last_rank_is_through_it():
    found = phases(continued(), continued(load=90))
    assert list(found.phases_s) == list(PHASES)
    expected = [10, 50, 40, 20, 40, 90, 10, 20]  # ms
    assert [1000 * s for s in found.phases_s.values()] == pytest.approx(expected)
    assert (found.failed_after, found.saved_after) == (6, 4)


@pytest.mark.parametrize(
    ("argument", "phase"),
    [("start", "start"), ("connected", "rendezvous"), ("built", "build"), ("load", "load")],
)
def test_a_delay_is_found_in_its_phase_and_nowhere_else(argument, phase):
    usual = phases().phases_s
    late_by = {"start": 200, "connected": 20, "built": 40, "load": 50}[argument] + 300
    slow = phases(continued(), continued(**{argument: late_by})).phases_s
    more = {name: slow[name] - usual[name] for name in PHASES}
    assert more.pop(phase) == pytest.approx(0.3)
    assert all(abs(rest) < 1e-9 for rest in more.values())


def test_a_rank_that_does_not_get_as_far_is_said():
    with pytest.raises(NoTimeline, match="did not come to 'step 7'"):
        phases(continued(), continued(steps=2))


def failing(world_size=2, **changes):
    plan = Recovery(**{"directory": "/somewhere", "fault_repeats": 2, **changes})
    return make_cell("ddp", world_size).model_copy(update={"purpose": "fail", "recovery": plan})


def test_a_link_is_cut_between_virtual_hosts_alone_and_torchrun_is_not_tried_there():
    hosts = VirtualHosts(link_bit_per_s=(100_000_000,))
    on_hosts = failing().model_copy(update={"virtual_hosts": hosts})
    assert "link" not in {kind for _, kind in wanted_faults(failing())}
    assert set(wanted_faults(on_hosts)) == {
        ("scalebench", kind) for kind in ("kill", "raise", "hang", "link")
    }
    alone = failing(1).model_copy(update={"virtual_hosts": hosts})
    assert "link" not in {kind for _, kind in wanted_faults(alone)}
