"""Devices by their short names: memory of the data sheets, and the peaks that are known."""

import numpy as np
import pytest

from scalebench.costmodel.links.topology import LINKS
from scalebench.errors import UsageError
from scalebench.search.links import links_by_name
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


SIZE = 1e12  # of so much latency is nothing


def sent_s(name: str, ranks: int, near: int) -> float:
    times = links_by_name(name, 4).time(
        "send_recv", np.array([ranks]), np.array([near]), np.array([SIZE])
    )
    return float(times[0])


def test_inside_a_node_the_first_link_carries_and_across_the_second() -> None:
    inside, across = (LINKS[name].bandwidth_byte_per_s for name in ("nvlink4", "infiniband-ndr"))
    assert sent_s("nvlink4+infiniband-ndr", 2, 2) == pytest.approx(SIZE / inside, rel=1e-3)
    assert sent_s("nvlink4 + infiniband-ndr", 2, 1) == pytest.approx(SIZE / across, rel=1e-3)


def test_one_name_is_the_link_of_all() -> None:
    rate = LINKS["ethernet-10g"].bandwidth_byte_per_s
    for near in (1, 2):
        assert sent_s("ethernet-10g", 2, near) == pytest.approx(SIZE / rate, rel=1e-3)


@pytest.mark.parametrize("text", ["nvlink", "nvlink4+", "nvlink4+pcie4+pcie5"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        links_by_name(text, 4)
