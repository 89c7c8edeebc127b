"""Devices by their short names: memory of the data sheets, and the peaks that are known."""

import pytest

from scalebench.search.speed import DEVICE_TYPES, assumed_speed, device_type

SHEETS_GB = {
    "V100-SXM2-32GB": 32,
    "A100-SXM4-80GB": 80,
    "A100-SXM4-40GB": 40,
    "H100 80GB HBM3": 80,
    "H200": 141,
    "B200": 180,
    "L40S": 48,
    "A10": 24,
    "Instinct MI300X": 192,
}


@pytest.mark.parametrize("name", DEVICE_TYPES)
def test_the_memory_is_that_of_the_data_sheet(name: str) -> None:
    device = device_type(name.upper())
    assert device.memory_bytes == SHEETS_GB[device.name] * 10**9


@pytest.mark.parametrize("name", [name for name in DEVICE_TYPES if name != "v100"])
def test_half_the_efficiency_is_twice_the_time(name: str) -> None:
    whole, half = (assumed_speed(device_type(name), part) for part in (1.0, 0.5))
    for precision, flop_s in whole.flop_s.items():
        assert flop_s == pytest.approx(1 / whole.peak_flops[precision])
        assert half.flop_s[precision] == pytest.approx(2 * flop_s)
    assert "bfloat16" in whole.flop_s
