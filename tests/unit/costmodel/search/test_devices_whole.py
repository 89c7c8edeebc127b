"""A device's speed, field by field, and what is said of it."""

import pytest

from scalebench.costmodel.search.devices import DEVICE_TYPES, assumed_speed, device_type
from scalebench.costmodel.search.job import ComputeSpeed
from scalebench.errors import UsageError


def test_a_device_computes_at_a_part_of_its_published_peak() -> None:
    """31.2 TFLOP/s in 32 bits and 125 in 16: NVIDIA A10 datasheet."""
    assert assumed_speed(device_type("a10"), 0.4) == ComputeSpeed(
        flop_s={
            "float32": pytest.approx(1 / (0.4 * 31.2e12)),
            "bfloat16": pytest.approx(1 / (0.4 * 125e12)),
        },
        pass_s=0.0,
        update_s=0.0,
        told="assumed, not measured: A10 computes at 40 % of its published peak (31.2 TFLOP/s "
        "float32, 125 TFLOP/s bfloat16); starting operators and the optimizer are in that",
        peak_flops={"float32": 31.2e12, "bfloat16": 125e12},
    )


def test_a_precision_without_a_published_peak_has_no_speed() -> None:
    found = assumed_speed(device_type("v100"), 1.0)
    assert found.precisions == ("float32",) and found.peak_flops == {"float32": 15.7e12}


@pytest.mark.parametrize(
    ("name", "topology"),
    [
        ("A100", "dgx-a100"), ("a100-40gb", "dgx-a100"), ("h100", "dgx-h100"), ("h200", "dgx-h100"),
        ("b200", "dgx-b200"), ("l40s", "pcie4-8x-ethernet-100g"), ("a10", "pcie4-4x-ethernet-25g"),
        ("v100", None), ("mi300x", None),
    ],
)  # fmt: skip
def test_a_device_is_sold_in_its_usual_machine(name: str, topology: str | None) -> None:
    assert device_type(name).topology == topology


def test_an_unknown_device_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError) as refused:
        device_type("a1000")
    assert all(name in str(refused.value) for name in DEVICE_TYPES)
