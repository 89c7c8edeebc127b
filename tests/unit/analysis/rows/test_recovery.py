"""What failures cost, part by part."""

import pytest

from scalebench.analysis.rows.launches import Launches
from scalebench.analysis.rows.recovery import figures_of, recovery_of_row
from scalebench.records.recovery import FaultTimeline, RecoveryRecord, SaveSample
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


def test_a_row_has_them_only_where_its_suite_saves():
    cell = make_cell("ddp", 1).model_copy(update={"purpose": "save"})

    def found(*checkpoints):
        return recovery_of_row(Launches(cell, checkpoints=checkpoints), None)["recovery"]

    assert str(found()) == "no checkpoint of this row was saved"
    assert str(found(make_failed(cell))) == "no launch that saved or restored succeeded"
    record = make_record(0, recovery=RecoveryRecord(saves=[saved()], file_system="ext4"))
    good = make_result(cell).model_copy(update={"ranks": [record]})
    assert found(good).file_system == "ext4"
