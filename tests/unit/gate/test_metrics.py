"""The smallest changes of interest of each metric."""

import pytest

from scalebench.gate.change import Change
from scalebench.gate.family import Pair, _finding
from scalebench.gate.measured import measured
from scalebench.gate.metrics import METRICS


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
        (0.015, "inconclusive"),
        (0.025, "regressed"),
        (-0.015, "inconclusive"),
        (-0.025, "inconclusive"),
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
    assert _finding(pair, change, 1e-9, None, 0.01)[0] == finding
