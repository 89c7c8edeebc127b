"""A rank is killed, or raises, and the launcher starts all again: real ranks, from outside."""

from itertools import pairwise

import pytest

from scalebench.launch.local import LocalLauncher
from scalebench.records.measured.recovery import fault_folder
from scalebench.session.recovery import faults
from scalebench.spec.presets import PRESETS
from scalebench.spec.recovery import FaultPlan, Recovery
from tests.builders.runs import make_cell
from tests.examples import cases

SLOW_START_S, SLOW_LOAD_S = 0.6, 1.0
SMALL = PRESETS["gpt-tiny"].model_copy(update={"layers": 1, "width": 32, "context": 16})


def failing(folder, *kinds, by="scalebench", elastic=False):
    once = {"fault_repeats": 1, "restarted_by": (by,), "elastic": elastic}
    plan = Recovery(directory=str(folder), faults=kinds, **once)
    return make_cell("ddp", 2, purpose="fail", recovery=plan, workload=SMALL)


def measured(cell, folder):
    with LocalLauncher() as launcher:
        return faults.measure_faults(launcher, cell, folder / "logs", "now")


def last(folder, name, attempt, step=None):
    """Seconds at which the last rank of an attempt noted an event, or the end of a step."""
    noted = [event for rank in (0, 1) for event in folder.events(attempt, rank)]
    return max(e.time_ns for e in noted if e.name == name and step in (None, e.number)) / 1e9


def test_a_rank_that_raises_is_restarted_and_a_lost_one_is_done_without(tmp_path):
    cell = failing(tmp_path, "raise", elastic=True)
    result = measured(cell, tmp_path)
    assert result.status == "ok", result.reason
    (found,) = result.faults
    at_step = fault_folder(cell).read_plan().at_step
    assert (found.kind, found.failed_after) == ("raise", at_step)
    assert all(seconds >= 0 for seconds in found.phases_s.values())
    elastic = result.elastic
    before, fewer, again = elastic.stretches
    assert [one.world_size for one in elastic.stretches] == [2, 1, 2]
    assert [one.rank_batch for one in elastic.stretches] == [16, 32, 16]
    assert fewer.accumulate == 2
    assert before.first == 1 and fewer.first <= len(before.loss) + 1
    assert again.first == fewer.first + len(fewer.loss)
    for one in elastic.stretches:
        expected = elastic.unbroken_loss[one.first - 1 :][: len(one.loss)]
        assert one.loss == pytest.approx(expected, rel=1e-4)


def leave_as_a_stopped_run(folder):
    folder.write_plan(FaultPlan(kind="raise", at_step=5, attempt=7))
    for attempt in range(3):
        folder.note(attempt, 0, "started", 1 << 30)  # no process has this number
        folder.note(attempt, 0, "step", 100)


@cases("by", "scalebench", "torchrun")
def test_a_job_fails_again_and_again_and_a_delay_is_found_in_its_phase(tmp_path, monkeypatch, by):
    """Each failure has its timeline; the first one's attempt starts and loads late."""
    usual = faults.plan_of

    def slow_in_attempt_1(cell, kind):
        slow = {"slow_start_s": SLOW_START_S, "slow_load_s": SLOW_LOAD_S}
        return usual(cell, kind).model_copy(update=slow if cell.repeat == 1 else {})

    monkeypatch.setattr(faults, "plan_of", slow_in_attempt_1)
    kinds = ["kill", "raise", "kill"]
    cell = failing(tmp_path, *kinds, by=by)
    folder = fault_folder(cell)
    leave_as_a_stopped_run(folder)
    result = measured(cell, tmp_path)
    assert result.status == "ok", result.reason
    assert [path.name for path in folder.root.parent.iterdir()] == ["0"], "one job"
    assert [one.kind for one in result.faults] == kinds
    names = ("slow-start", "started", "connected", "built", "slept-before-loading", "loaded")
    for number, found in enumerate(result.faults):
        phases_s = found.phases_s
        assert (found.restarted_by, found.restart) == (by, number + 1)
        assert sum(phases_s.values()) == pytest.approx(found.total_s)
        assert found.saved_after % faults.SAVE_EVERY == 0
        assert 0 < found.saved_after <= found.failed_after == folder.last_step(number, 2)
        waits, started, connected, built, slept, loaded = (
            last(folder, name, number + 1) for name in names
        )
        caught_up = last(folder, "step", number + 1, found.failed_after + 1)
        assert phases_s["rendezvous"] == pytest.approx(connected - started)
        assert phases_s["load"] == pytest.approx(loaded - built)
        assert (slept - built >= SLOW_LOAD_S) == (number == 0)
        assert (started - waits >= SLOW_START_S) == (number == 0)
        # What starting takes without the planted delay is known to the ranks alone.
        stopped = caught_up - found.total_s + phases_s["notice"] + phases_s["stop"]
        if number == 0:
            assert waits > stopped
            assert phases_s["start"] - (waits - stopped) == pytest.approx(started - waits, rel=0.05)
        rest_s = phases_s["first_step"] + phases_s["catch_up"]
        assert rest_s == pytest.approx(caught_up - loaded)
    for earlier, later in pairwise(result.faults):
        assert later.failed_after > earlier.failed_after + faults.SAVE_EVERY
        assert later.saved_after > earlier.failed_after, "saved since it caught up"
