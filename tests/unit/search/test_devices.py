"""Devices by their short names: memory of the data sheets, and the peaks that are known."""

import pytest

from scalebench.errors import UsageError
from scalebench.search.devices.parameters import defaults
from scalebench.search.prediction.links import links_by_name
from scalebench.search.prediction.speed import DEVICE_TYPES, device_type, modelled_speed
from tests.examples import cases

SHEETS_GB = {
    "V100-SXM2-32GB": 32,
    "A100-SXM4-80GB": 80,
    "A100-SXM4-40GB": 40,
    "H100 80GB HBM3": 80,
    "H200": 141,
    "B200": 180,
    "B300 SXM6 AC": 270,
    "GB200": 186,
    "GB300": 279,
    "L40S": 48,
    "A10": 24,
    "Instinct MI300X": 192,
}


@cases("name", *DEVICE_TYPES)
def test_the_memory_is_that_of_the_data_sheet(name: str) -> None:
    device = device_type(name.upper())
    assert device.memory_bytes == SHEETS_GB[device.name] * 10**9


@cases("gpu", "h100", "gb200", "gb300")
def test_a_narrower_format_is_faster_where_the_device_has_it(gpu: str) -> None:
    model = modelled_speed(device_type(gpu), defaults(gpu), "").device
    assert model is not None
    half, eight, four = (model.peaks[name] for name in ("bfloat16", "fp8", "fp4"))
    assert eight == pytest.approx(2 * half)
    assert (four >= 2 * eight) if gpu != "h100" else (four == eight)


@cases("text", "nvlink", "nvlink4+", "nvlink4+pcie4+pcie5")
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        links_by_name(text, 4)
