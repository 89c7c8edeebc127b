"""Peaks of devices: dense figures, and no device taken for another."""

import re

import pytest

from scalebench.costmodel.device_peaks import (
    DEVICES,
    compute_dtype,
    mfu,
    mixed_peak,
    peak_flops,
    why_no_peak,
)
from scalebench.spec import Ddp, Plain

FORMATS = ("float32", "tf32", "float16", "bfloat16", "fp8")
DENSE = {
    "Tesla V100-SXM2-32GB": (15.7, None, 125, None, None),
    "Tesla V100-PCIE-32GB": (14, None, 112, None, None),
    "Tesla V100S-PCIE-32GB": (16.4, None, 130, None, None),
    "Tesla T4": (8.1, None, 65, None, None),
    "NVIDIA A100-SXM4-40GB": (19.5, 156, 312, 312, None),
    "NVIDIA A800-SXM4-80GB": (19.5, 156, 312, 312, None),
    "NVIDIA A800 80GB PCIe": (19.5, 156, 312, 312, None),
    "NVIDIA A100-SXM-64GB": (22.4, 179, 358, 358, None),
    "NVIDIA A10G": (35, 35, 70, 70, None),
    "NVIDIA A10": (31.2, 62.5, 125, 125, None),
    "NVIDIA A30": (10.3, 82, 165, 165, None),
    "NVIDIA A40": (37.4, 74.8, 149.7, 149.7, None),
    "NVIDIA L4": (30.3, 60, 121, 121, 242.5),
    "NVIDIA L40": (90.5, 90.5, 181.05, 181.05, 362),
    "NVIDIA L40S": (91.6, 183, 362.05, 362.05, 733),
    "NVIDIA RTX A6000": (38.7, 77.4, 154.8, 154.8, None),
    "NVIDIA RTX 6000 Ada Generation": (91.1, 182.1, 364.2, 364.2, 728.5),
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": (126, 251.9, 503.8, 503.8, 1007.6),
    "NVIDIA H20": (44, 74, 148, 148, 296),
    "NVIDIA H20-3e": (44, 74, 148, 148, 296),
    "NVIDIA H800": (67, 494.5, 989.5, 989.5, 1979),
    "NVIDIA H800 PCIe": (51, 378, 756.5, 756.5, 1513),
    "NVIDIA GH200 480GB": (67, 494.5, 989.5, 989.5, 1979),
    "NVIDIA GH200 144G HBM3e": (67, 494.5, 989.5, 989.5, 1979),
    "NVIDIA H100 80GB HBM3": (67, 494.5, 989.5, 989.5, 1979),
    "NVIDIA H100 PCIe": (51, 378, 756.5, 756.5, 1513),
    "NVIDIA H100 NVL": (60, 417.5, 835.5, 835.5, 1670.5),
    "NVIDIA H200": (67, 494.5, 989.5, 989.5, 1979),
    "NVIDIA H200 NVL": (60, 417.5, 835.5, 835.5, 1670.5),
    "NVIDIA B200": (None, 1100, 2250, 2250, 4500),
    "NVIDIA GB200": (None, 1250, 2500, 2500, 5000),
    "NVIDIA B300 SXM6 AC": (75, 1100, 2250, 2250, 4500),
    "NVIDIA GB300": (80, 1250, 2500, 2500, 5000),
    "NVIDIA GeForce RTX 3090 Ti": (40, 40, 80, 80, None),
    "NVIDIA GeForce RTX 5090": (104.8, 104.8, 209.5, 209.5, 419),
    "NVIDIA GeForce RTX 3090": (35.6, 35.6, 71, 71, None),
    "NVIDIA GeForce RTX 4090": (82.6, 82.6, 165.2, 165.2, 330.3),
    "AMD Instinct MI210": (45.3, None, 181, 181, None),
    "AMD Instinct MI325X": (163.4, 653.7, 1307.4, 1307.4, 2614.9),
    "AMD Instinct MI355X": (157.3, None, 2516.6, 2516.6, 5033.2),
    "AMD Instinct MI250X": (47.85, None, 191.5, 191.5, None),
    "AMD Instinct MI300X": (163.4, 653.7, 1307.4, 1307.4, 2614.9),
}
"""TFLOP/s without sparsity; of an MI250X one of its two dies, which together have 95.7 and 383."""


@pytest.mark.parametrize(
    "name",
    [
        "cpu",
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA H20 NVL16",
        "NVIDIA H2",
        "NVIDIA H200 MIG 1g.18gb",
        "NVIDIA GH200",
        "NVIDIA GB20",
        "NVIDIA A10M",
        "NVIDIA RTX 6000",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        "NVIDIA GeForce RTX 5090 D",
        "NVIDIA GeForce RTX 5090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA L400",
        "Tesla T40",
        "AMD Instinct MI300A",
        "AMD Instinct MI250X/MI250",
        "",
    ],
)
def test_an_unknown_device_has_no_peak_and_a_reason(name):
    assert peak_flops(name, "float32") is None
    assert repr(name) in why_no_peak(name, "float32")


def test_no_name_fits_two_devices():
    for name in DENSE:
        bare = name.partition(" ")[2]
        assert sum(re.fullmatch(device.pattern, bare) is not None for device in DEVICES) == 1


def test_every_figure_has_a_source_with_a_year():
    for device in DEVICES:
        assert re.search(r"(NVIDIA|AMD) .*\(20\d\d\)", device.source), device.pattern


@pytest.mark.parametrize(
    ("execution", "tf32", "dtype"),
    [
        (Plain(), False, "float32"),
        (Plain(), True, "tf32"),
        (Ddp(autocast=True), False, "bfloat16"),
        (Ddp(autocast=True), True, "bfloat16"),
    ],
)
def test_the_format_that_products_run_in(execution, tf32, dtype):
    assert compute_dtype(execution, tf32) == dtype


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


@pytest.mark.parametrize(
    ("name", "lanes", "boost_ghz"),
    [
        ("Tesla V100-SXM2-16GB", 5120, 1.53),
        ("Tesla V100-PCIE-16GB", 5120, 1.38),
        ("Tesla V100S-PCIE-32GB", 5120, 1.597),
        ("Tesla T4", 2560, 1.59),
        ("NVIDIA A100-SXM4-80GB", 6912, 1.41),
        ("NVIDIA A10", 9216, 1.695),
        ("NVIDIA A30", 3584, 1.44),
        ("NVIDIA A40", 10752, 1.74),
        ("NVIDIA L4", 7424, 2.04),
        ("NVIDIA L40", 18176, 2.49),
        ("NVIDIA L40S", 18176, 2.52),
        ("NVIDIA H100 80GB HBM3", 16896, 1.98),
        ("NVIDIA H100 PCIe", 14592, 1.755),
        ("NVIDIA H100 NVL", 16896, 1.785),
        ("NVIDIA A100-SXM-64GB", 124 * 64, 1.41),
        ("NVIDIA RTX A6000", 10752, 1.8),
        ("NVIDIA RTX 6000 Ada Generation", 18176, 2.505),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 188 * 128, 2.617),
        ("NVIDIA GeForce RTX 3090 Ti", 10752, 1.86),
        ("NVIDIA GeForce RTX 5090", 170 * 128, 2.407),
        ("AMD Instinct MI210", 104 * 128, 1.7),
        ("AMD Instinct MI325X", 304 * 128, 2.1),
        ("AMD Instinct MI355X", 256 * 128, 2.4),
    ],
)
def test_float32_is_two_operations_of_each_lane_in_each_cycle(name, lanes, boost_ghz):
    """Lanes and boost clock of the makers' architecture papers: another source than the peak's.

    AMD's matrix units do 256 operations in each cycle and compute unit.
    """
    assert peak_flops(name, "float32") == pytest.approx(2 * lanes * boost_ghz * 1e9, rel=0.01)


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.pattern)
def test_half_the_bits_are_twice_the_operations(device):
    tera = device.tera
    if "fp8" in tera:
        assert tera["fp8"] == pytest.approx(2 * tera["float16"], rel=0.015)
    assert tera.get("bfloat16", tera["float16"]) == tera["float16"] > tera.get("float32", 0.0)


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("NVIDIA L4", 485),
        ("NVIDIA L40", 724),
        ("NVIDIA L40S", 1466),
        ("NVIDIA H100 80GB HBM3", 3958),
        ("NVIDIA H100 PCIe", 3026),
        ("NVIDIA H100 NVL", 3341),
    ],
)
def test_in_eight_bits_sparsity_is_sold_as_twice_the_dense_peak(name, printed):
    """TFLOP/s with sparsity, as the data sheets print them beside or instead of the dense ones."""
    assert 2 * peak_flops(name, "fp8") == pytest.approx(printed * 1e12, rel=1e-3)


@pytest.mark.parametrize("name", DENSE)
def test_every_figure_is_the_printed_one(name):
    found = tuple(peak_flops(name, dtype) for dtype in FORMATS)
    assert found == tuple(
        None if figure is None else pytest.approx(figure * 1e12, rel=1e-12)
        for figure in DENSE[name]
    )


@pytest.mark.parametrize("name", ["V100-SXM2-16GB", " Tesla V100-SXM2-16GB ", "A10", "AMD A10"])
def test_the_maker_and_blanks_may_stand_around_a_name(name):
    assert peak_flops(name, "float16") == 125e12
