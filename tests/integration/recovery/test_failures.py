"""A rank is killed, or raises, and the launcher starts all again: real ranks, from outside."""

import re
from itertools import pairwise

import pytest

from scalebench.launch.local import LocalLauncher
from scalebench.records.measured.fault_events import Event, fault_folder
from scalebench.session.recovery import faults
from scalebench.spec.presets import PRESETS
from scalebench.spec.recovery import FaultPlan, Recovery
from tests.builders.runs import make_cell

SLOW_START_S, SLOW_LOAD_S = 0.6, 1.0
SMALL = PRESETS["gpt-tiny"].model_copy(update={"layers": 1, "width": 32, "context": 16})


def failing(folder, kind):
    plan = Recovery(
        directory=str(folder),
        faults=(kind,),
        fault_repeats=1,
        restarted_by=("scalebench",),
        elastic=kind == "raise",
    )
    changes = {"purpose": "fail", "recovery": plan, "workload": SMALL}
    return make_cell("ddp", 2).model_copy(update=changes)


def measured(folder, kind):
    cell = failing(folder, kind)
    with LocalLauncher() as launcher:
        result = faults.measure_faults(launcher, cell, folder / "logs", "now")
    assert result.status == "ok", result.reason
    return result, fault_folder(cell)


def went(folder, kind):
    result, folder_of_it = measured(folder, kind)
    (timeline,) = result.faults
    return timeline, folder_of_it


def last(folder, name, attempt=1):
    events: list[list[Event]] = [folder.events(attempt, rank) for rank in (0, 1)]
    return max(e.time_ns for of_rank in events for e in of_rank if e.name == name)


def done(folder, step, attempt=1):
    events = [e for rank in (0, 1) for e in folder.events(attempt, rank)]
    return max(e.time_ns for e in events if (e.name, e.number) == ("step", step))


def test_a_killed_job_continues_and_a_planted_delay_is_found_in_its_phase(tmp_path, monkeypatch):
    usual = faults.plan_of

    def slow(cell, kind):
        delays = {"slow_start_s": SLOW_START_S, "slow_load_s": SLOW_LOAD_S}
        return usual(cell, kind).model_copy(update=delays)

    monkeypatch.setattr(faults, "plan_of", slow)
    found, folder = went(tmp_path, "kill")
    assert sum(found.phases_s.values()) == pytest.approx(found.total_s)
    assert found.saved_after % faults.SAVE_EVERY == 0
    assert 0 < found.saved_after <= found.failed_after
    # What starting takes without the planted delay is known to the ranks alone.
    since_stopped_s = found.total_s - found.phases_s["notice"] - found.phases_s["stop"]
    stopped_ns = done(folder, found.failed_after + 1) - since_stopped_s * 1e9
    starting_s = (last(folder, "slow-start") - stopped_ns) / 1e9
    planted_s = (last(folder, "started") - last(folder, "slow-start")) / 1e9
    assert planted_s >= SLOW_START_S and starting_s > 0
    assert found.phases_s["start"] - starting_s == pytest.approx(planted_s, rel=0.05)
    connecting_s = (last(folder, "connected") - last(folder, "started")) / 1e9
    assert found.phases_s["rendezvous"] == pytest.approx(connecting_s)
    # What loading takes without the planted delay is known to the ranks alone.
    loading_s = (last(folder, "loaded") - last(folder, "slept-before-loading")) / 1e9
    planted_s = (last(folder, "slept-before-loading") - last(folder, "built")) / 1e9
    assert planted_s >= SLOW_LOAD_S
    assert found.phases_s["load"] - loading_s == pytest.approx(planted_s, rel=0.05)


def test_a_rank_that_raises_is_restarted_and_a_lost_one_is_done_without(tmp_path):
    result, folder = measured(tmp_path, "raise")
    (found,) = result.faults
    assert found.kind == "raise" and found.failed_after == folder.read_plan().at_step
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


@pytest.mark.parametrize("by", ["scalebench", "torchrun"])
def test_one_job_fails_again_and_again_and_each_failure_has_its_timeline(tmp_path, monkeypatch, by):
    usual = faults.plan_of

    def slow_in_attempt_1(cell, kind):
        return usual(cell, kind).model_copy(
            update={"slow_load_s": SLOW_LOAD_S if cell.repeat == 1 else 0.0}
        )

    monkeypatch.setattr(faults, "plan_of", slow_in_attempt_1)
    cell = failing(tmp_path, "kill")
    wanted = {"restarted_by": (by,), "faults": ("kill", "raise", "kill")}
    cell = cell.model_copy(update={"recovery": cell.recovery.model_copy(update=wanted)})
    leave_as_a_stopped_run(fault_folder(cell))
    with LocalLauncher() as launcher:
        result = faults.measure_faults(launcher, cell, tmp_path / "logs", "now")
    assert result.status == "ok", result.reason
    folder = fault_folder(cell)
    assert [path.name for path in folder.root.parent.iterdir()] == ["0"], "one job"
    assert [one.kind for one in result.faults] == ["kill", "raise", "kill"]
    for number, found in enumerate(result.faults):
        assert (found.restarted_by, found.restart) == (by, number + 1)
        assert sum(found.phases_s.values()) == pytest.approx(found.total_s)
        built, slept, loaded = (
            last(folder, name, number + 1) for name in ("built", "slept-before-loading", "loaded")
        )
        assert found.phases_s["load"] == pytest.approx((loaded - built) / 1e9)
        assert ((slept - built) / 1e9 >= SLOW_LOAD_S) == (number == 0)
        assert found.failed_after == folder.last_step(number, 2)
        caught_up = done(folder, found.failed_after + 1, number + 1)
        before = last(folder, "loaded", number + 1) / 1e9
        rest_s = found.phases_s["first_step"] + found.phases_s["catch_up"]
        assert rest_s == pytest.approx(caught_up / 1e9 - before)
    for earlier, later in pairwise(result.faults):
        assert later.failed_after > earlier.failed_after + faults.SAVE_EVERY
        assert later.saved_after > earlier.failed_after, "saved since it caught up"


def test_without_a_complete_checkpoint_the_reason_says_what_is_there_and_what_to_do(
    tmp_path, monkeypatch
):
    usual = faults._one_failure

    def and_lose_the_files(*args):
        outside = usual(*args)
        for path in fault_folder(cell).checkpoints.rglob("*.distcp"):
            path.unlink()
        return outside

    monkeypatch.setattr(faults, "_one_failure", and_lose_the_files)
    cell = failing(tmp_path, "kill")
    with LocalLauncher() as launcher:
        result = faults.measure_faults(launcher, cell, tmp_path / "logs", "now")
    assert result.status == "failed" and result.reason is not None
    assert re.search(
        r"No complete checkpoint in \S+/faults/0/checkpoints: step-\d+ is damaged \(\S+ is "
        r"missing\)[^\n]*\. A complete one is [^\n]* --checkpoint-dir\.$",
        result.reason,
    ), result.reason
