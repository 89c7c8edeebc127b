"""What failures cost, part by part."""

import pytest

from scalebench.analysis.rows.recovery import figures_of
from scalebench.records.measured.recovery import FaultTimeline, RecoveryRecord
from scalebench.spec.recovery import PHASES


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
