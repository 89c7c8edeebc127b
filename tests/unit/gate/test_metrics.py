"""The smallest changes of interest of each metric."""

import pytest

from scalebench.gate.metrics import (
    METRICS,
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
