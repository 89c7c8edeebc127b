"""What checkpoints cost, from what ranks recorded of saves and restores."""

import pytest

from scalebench.analysis.rows.launches import Launches
from scalebench.analysis.rows.recovery import figures_of, recovery_of_row
from scalebench.records.recovery import (
    ElasticRun,
    ElasticStretch,
    FaultTimeline,
    RecoveryRecord,
    SaveSample,
)
from scalebench.spec.recovery import PHASES
from tests.builders.runs import make_cell, make_failed, make_record, make_result


def saved(method="async", **changes):
    fields = {
        "step": 10,
        "stall_s": 0.010,
        "durable_s": 0.100,
        "bytes": 5_000_000,
        "quiet_s": [0.020, 0.020],
        "later_s": [0.035, 0.025, 0.020],
        "num_beside": 2,
        "extra_host_bytes": 1000,
    }
    return SaveSample(method=method, **{**fields, **changes})


def figures(*ranks):
    return figures_of([[RecoveryRecord(saves=list(saves)) for saves in ranks]])


def test_a_save_costs_its_stall_and_what_the_steps_beside_it_are_slower():
    (found,) = figures([saved(), saved()]).saves
    assert found.stall_s.value == pytest.approx(0.010)
    assert found.slower_s.value == pytest.approx(0.020)  # 35 + 25 instead of 20 + 20 ms
    assert found.slowdown == pytest.approx(0.5)
    assert found.cost_s.value == pytest.approx(0.030)
    assert found.bandwidth_byte_per_s.value == pytest.approx(50_000_000)
    assert (found.stall_s.n, found.steps_beside) == (2, 2)


def test_the_slowest_rank_counts_in_every_part():
    other = saved(
        stall_s=0.015, durable_s=0.2, bytes=0, later_s=[0.02, 0.045, 0.02], extra_host_bytes=7000
    )
    (found,) = figures([saved()], [other]).saves
    assert found.stall_s.value == pytest.approx(0.015)
    assert found.durable_s.value == pytest.approx(0.2)
    assert found.slower_s.value == pytest.approx(0.040)  # 35 on the first rank, 45 on the second
    assert (found.bytes, found.extra_host_bytes) == (5_000_000, 7000)


def test_without_a_step_beside_it_nothing_is_said_of_slower_steps():
    (found,) = figures([saved("full", num_beside=0)]).saves
    assert found.slower_s is None and found.slowdown is None
    assert "before the next step" in found.unavailable["slower_s"]
    assert found.cost_s.value == pytest.approx(0.010)


def fault(kind="kill", by="scalebench", load=0.3, lost=3, data_s=0.25):
    phases = {**dict.fromkeys(PHASES, 0.1), "load": load}
    return FaultTimeline(
        kind=kind,
        restarted_by=by,
        rank=1,
        failed_after=8 + lost,
        saved_after=8,
        phases_s=phases,
        total_s=sum(phases.values()),
        data_s=data_s,
    )


def test_failures_are_estimated_for_each_kind_and_launcher():
    found = figures_of([[RecoveryRecord()]], [fault(), fault(load=0.5, lost=1), fault("raise")])
    killed, raised = found.failures
    assert (killed.kind, killed.total_s.n, raised.kind) == ("kill", 2, "raise")
    assert killed.phases_s["load"].value == pytest.approx(0.4)
    assert killed.restart_s.value == pytest.approx(0.9)  # five phases of 0.1 s, and 0.4 s
    assert sum(e.value for e in killed.phases_s.values()) == pytest.approx(killed.total_s.value)
    assert killed.lost_steps == 2


def test_lost_time_has_the_names_of_the_field_and_sums_to_the_total():
    (killed,) = figures_of([[RecoveryRecord()]], [fault(), fault(load=0.5)]).failures
    seconds = {name: part.value for name, part in killed.badput_s.items()}
    assert seconds == pytest.approx(
        {
            "infrastructure": 0.2,
            "initialisation": 0.3,
            "restore": 0.15,  # 0.4 s of loading, of which the data takes 0.25 s
            "data": 0.25,
            "lost_progress": 0.2,
        }
    )
    assert sum(seconds.values()) == pytest.approx(killed.total_s.value)


def test_where_the_data_was_not_noted_restore_holds_it():
    (killed,) = figures_of([[RecoveryRecord()]], [fault(), fault(data_s=None)]).failures
    assert killed.badput_s["data"] is None and "restore holds it" in killed.unavailable["data"]
    parts = [part.value for part in killed.badput_s.values() if part is not None]
    assert sum(parts) == pytest.approx(killed.total_s.value)


def test_a_job_with_fewer_ranks_has_its_throughput_and_its_distance_from_one_without_a_stop():
    def stretch(world_size, first, loss, step_s):
        return ElasticStretch(
            world_size=world_size,
            rank_batch=32 // world_size,
            first=first,
            loss=loss,
            step_s=step_s,
        )

    run = ElasticRun(
        stretches=[
            stretch(2, 1, [5.0, 4.0, 3.0], [0.1, 0.1, 0.4]),
            stretch(1, 3, [3.3], [0.2]),
            stretch(2, 4, [2.0, 1.0], []),
        ],
        shrink_s=1.5,
        grow_s=0.5,
        unbroken_loss=[5.0, 4.0, 3.0, 2.0],
    )
    found = figures_of([[RecoveryRecord()]], elastic=[run]).elastic
    assert [one.throughput for one in found.stretches] == pytest.approx([320, 160, None])
    assert [one.first_step for one in found.stretches] == [1, 3, 4]
    assert found.loss_deviation == pytest.approx(0.1)  # step 3 with one rank; step 5 is in one run
    assert (found.shrink_s, found.grow_s) == (1.5, 0.5)
    assert found.shrink_over_losses_s is None, "one loss has no interval"
    assert found.stretches[0].throughput_over_losses is None


def test_a_row_has_them_only_where_its_suite_saves():
    cell = make_cell("ddp", 1).model_copy(update={"purpose": "save"})

    def found(*checkpoints):
        return recovery_of_row(Launches(cell, checkpoints=checkpoints), None)["recovery"]

    assert str(found()) == "no checkpoint of this row was saved"
    assert str(found(make_failed(cell))) == "no launch that saved or restored succeeded"
    record = make_record(0, recovery=RecoveryRecord(saves=[saved()], file_system="ext4"))
    good = make_result(cell).model_copy(update={"ranks": [record]})
    assert found(good).file_system == "ext4"
