import re

import pytest

from scalebench.costmodel.device_peaks import DEVICES, mfu, mixed_peak, peak_flops, why_no_peak
from tests.examples import cases


@cases(
    "name",
    *("cpu", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H2", "NVIDIA GH200", "NVIDIA A10M"),
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    *("NVIDIA GeForce RTX 5090 Laptop GPU", "NVIDIA GeForce RTX 4090 Laptop GPU", "Tesla T40"),
    "AMD Instinct MI250X/MI250",
)
def test_an_unknown_device_has_no_peak_and_a_reason(name):
    assert peak_flops(name, "float32") is None
    assert repr(name) in why_no_peak(name, "float32")


def test_every_figure_has_a_source_with_a_year():
    for device in DEVICES:
        assert re.search(r"(NVIDIA|AMD) .*\(20\d\d\)", device.source), device.pattern


def test_mfu_of_palm():
    """PaLM 540B, section 4.1 and appendix B: 238.3e3 tokens/s on 6144 chips of 275 TFLOP/s give
    45.7 % without attention and 46.2 % with it (118 layers, 48 heads of 256, 2048 tokens)."""
    without = 6 * 540.35e9
    assert mfu(without, 238.3e3, 6144, 275e12) == pytest.approx(0.457, abs=1e-3)
    attention = 12 * 118 * 48 * 256 * 2048
    assert mfu(without + attention, 238.3e3, 6144, 275e12) == pytest.approx(0.462, abs=1e-3)


def test_the_peak_of_a_mix_is_that_of_doing_each_part_at_its_own():
    name = "NVIDIA A100-SXM4-80GB"  # TF32 156, float32 19.5 TFLOP/s
    assert mixed_peak({"tf32": 5.0}, name) == pytest.approx(156e12)
    assert mixed_peak({"tf32": 8.0, "float32": 1.0}, name) == pytest.approx(9 * 156e12 / 16)
    assert mixed_peak({"tf32": 5.0, "fp8": 0.0}, name) == pytest.approx(156e12)
    assert mixed_peak({"tf32": 5.0, "fp8": 1.0}, name) is None
    assert mixed_peak({"tf32": 5.0}, "cpu") is None
    assert mixed_peak({}, name) is None


@cases(
    "name, lanes, boost_ghz",
    *(("Tesla V100-SXM2-16GB", 5120, 1.53), ("Tesla V100S-PCIE-32GB", 5120, 1.597)),
    *(("NVIDIA A100-SXM4-80GB", 6912, 1.41), ("NVIDIA A30", 3584, 1.44)),
    *(("NVIDIA L4", 7424, 2.04), ("NVIDIA L40S", 18176, 2.52), ("NVIDIA H100 PCIe", 14592, 1.755)),
    *(("NVIDIA A100-SXM-64GB", 124 * 64, 1.41), ("NVIDIA RTX 6000 Ada Generation", 18176, 2.505)),
    *(("NVIDIA GeForce RTX 3090 Ti", 10752, 1.86), ("AMD Instinct MI210", 104 * 128, 1.7)),
    ("AMD Instinct MI355X", 256 * 128, 2.4),
)
def test_float32_is_two_operations_of_each_lane_in_each_cycle(name, lanes, boost_ghz):
    """Lanes and boost clock of the makers' architecture papers: another source than the peak's.

    AMD's matrix units do 256 operations in each cycle and compute unit.
    """
    assert peak_flops(name, "float32") == pytest.approx(2 * lanes * boost_ghz * 1e9, rel=0.01)


@cases("device", *DEVICES, ids=lambda device: device.pattern)
def test_half_the_bits_are_twice_the_operations(device):
    tera = device.tera
    if "fp8" in tera:
        assert tera["fp8"] == pytest.approx(2 * tera["float16"], rel=0.015)
    assert tera.get("bfloat16", tera["float16"]) == tera["float16"] > tera.get("float32", 0.0)
