"""The peaks of devices as their makers print them, every figure, exactly."""

import pytest

from scalebench.costmodel.device_peaks import mixed_peak, peak_flops, why_no_peak

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


@pytest.mark.parametrize("name", DENSE)
def test_every_figure_is_the_printed_one(name):
    found = tuple(peak_flops(name, dtype) for dtype in FORMATS)
    assert found == tuple(
        None if figure is None else pytest.approx(figure * 1e12, rel=1e-12)
        for figure in DENSE[name]
    )


def test_a_teraflop_is_ten_to_the_twelfth():
    assert peak_flops("NVIDIA A100-SXM4-40GB", "bfloat16") == 312_000_000_000_000


@pytest.mark.parametrize("name", ["V100-SXM2-16GB", " Tesla V100-SXM2-16GB ", "A10", "AMD A10"])
def test_the_maker_and_blanks_may_stand_around_a_name(name):
    assert peak_flops(name, "float16") == 125e12


def test_a_format_without_a_figure_and_a_device_without_one_have_different_reasons():
    assert why_no_peak("Tesla T4", "fp8") == "Tesla T4 has no published dense peak for fp8"
    assert why_no_peak("abacus", "fp8") == "the peak FLOP/s of 'abacus' are not known"
    assert why_no_peak("Tesla T4", "float16") is None


def test_a_format_without_work_takes_no_time_even_if_its_peak_is_known():
    """3 TFLOP at 312, 1 TFLOP at 156, none at 19.5: 4 / (3/312 + 1/156) TFLOP/s."""
    mix = {"bfloat16": 3e12, "float32": 0.0, "tf32": 1e12}
    assert mixed_peak(mix, "NVIDIA A100-SXM4-40GB") == pytest.approx(4e12 / (3 / 312 + 1 / 156))
    assert mixed_peak({"float32": 0.0}, "NVIDIA A100-SXM4-40GB") is None
