"""The smallest changes of interest of each metric."""

from dataclasses import replace

import pytest

from scalebench.gate.change import Change
from scalebench.gate.family import Pair, _finding
from scalebench.gate.measured import measured
from scalebench.gate.metrics import (
    COLLECTIVES,
    METRICS,
    RECOVERY,
    Metric,
    count_metric,
    named_metric,
)


def test_a_floor_is_the_larger_of_a_share_and_an_amount():
    floors = {metric.name: metric.floor for metric in METRICS}
    assert floors["step_s"](1.0) == pytest.approx(0.01)
    assert floors["step_s"](5e-4) == pytest.approx(0.02)  # 10 µs
    assert floors["efficiency"](0.8) == pytest.approx(0.01)
    assert floors["efficiency"](0.25) == pytest.approx(0.02)  # half a point
    assert floors["peak_memory_bytes"](1e9) == pytest.approx(0.005)
    assert floors["peak_memory_bytes"](2**20) == pytest.approx(2**16 / 2**20)
    assert floors["step_s"](0.0) == float("inf") and floors["wire_bytes"](0.0) == 0.0


@pytest.mark.parametrize(
    ("value", "finding"),
    [
        (0.015, "probably regressed"),
        (0.025, "regressed"),
        (-0.015, "not worse"),
        (-0.025, "not worse"),
        (-0.035, "improved"),
    ],
)
def test_a_change_counts_when_its_whole_interval_is_beyond_the_floor_of_its_direction(
    value, finding
):
    """Intervals of ±0.01; the floor is 0.01 upwards and 0.02 downwards."""
    change = Change(value, error=0.01 / 1.959964, dof=1e9)
    none = measured([0.0])
    pair = Pair("step", none, none, floor=0.01, floor_down=0.02)
    assert _finding(pair, change, None)[0] == finding


SHOWN = {
    # relative and absolute floor, what another host may change it by, whether it decides
    "step_s": (0.01, 1e-5, 0.03, True),
    "efficiency": (0.01, 0.005, 0.0, False),
    "peak_memory_bytes": (0.005, 65_536, 0.0, True),
    "time_to_target_s": (0.05, 0.0, 0.03, True),
    "wire_bytes": (0.0, 0.0, 0.0, True),
    "payload_bytes": (0.0, 0.0, 0.0, True),
    "predicted_memory_bytes": (0.0, 0.0, 0.0, True),
    "predicted_bubble_ratio": (0.0, 0.0, 0.0, True),
    "exposed_comm_s": (0.05, 1e-4, 0.0, False),
    "energy_j_per_sample": (0.01, 0.0, 0.0, False),
    "loss_last": (0.01, 0.0, 0.0, False),
    "prediction_error": (0.0, 0.02, 0.0, False),
    "checkpoint_stall_s": (0.1, 1e-3, 0.0, False),
    "restart_s": (0.1, 0.05, 0.0, False),
    "collectives": (0.0, 0.0, 0.0, True),
}


def test_what_each_metric_counts_as_a_change_and_whether_it_decides():
    metrics = (*METRICS, *RECOVERY, COLLECTIVES)
    found = {
        m.name: (m.relative_floor, m.absolute_floor, m.host_allowance, m.decides) for m in metrics
    }
    assert found == SHOWN and list(found) == list(SHOWN)
    assert [m.name for m in metrics if m.higher_is_better] == ["efficiency"]
    assert [m.name for m in metrics if m.falls_with_steps] == ["loss_last"]
    signed = {m.name: m.kind for m in metrics if m.kind in ("signed", "single")}
    assert signed == {
        "exposed_comm_s": "signed", "loss_last": "single", "prediction_error": "single",
    }  # fmt: skip
    exact = {m.name for m in metrics if m.kind == "exact"}
    assert exact == {name for name, told in SHOWN.items() if told[:2] == (0.0, 0.0)}


def test_a_metric_that_nothing_is_said_of_decides_and_has_no_floor():
    made = Metric("m", "m", "s", "single")
    assert made.decides and not made.higher_is_better and not made.falls_with_steps
    assert (made.host_allowance, made.floor(2.0), made.floor(0.0)) == (0.0, 0.0, 0.0)


def test_metrics_of_one_kind_have_the_settings_of_all():
    stall = replace(RECOVERY[0], relative_floor=0.7)
    found = named_metric("async_two_checkpoint_stall_s", stall)
    assert found == replace(
        stall, name="async_two_checkpoint_stall_s", phrase="stall of a checkpoint (async two)"
    )
    for decides in (True, False):
        counted = count_metric("all_reduce", replace(COLLECTIVES, decides=decides))
        assert counted == Metric(
            *("all_reduce_count", "all-reduces per step", "count", "exact"), decides=decides
        )
    assert count_metric("broadcast").decides
