import pytest
from pydantic import ValidationError

from scalebench.records.run import CellResult
from scalebench.records.telemetry import DeviceStates, DeviceTraffic, throttle_reasons
from tests.builders.watched import make_twin, sample, watched


def test_bits_have_names_and_unknown_ones_a_number():
    assert throttle_reasons(0) == ()
    assert throttle_reasons(0x44) == ("power cap", "hardware thermal slowdown")
    assert throttle_reasons(0x1001) == ("GPU idle", "unknown reason 0x1000")


def test_the_names_agree_with_nvml_s_constants():
    import pynvml

    constants = {
        "GpuIdle": "GPU idle",
        "ApplicationsClocksSetting": "application clocks",
        "SwPowerCap": "power cap",
        "HwSlowdown": "hardware slowdown",
        "SyncBoost": "sync boost",
        "SwThermalSlowdown": "software thermal slowdown",
        "HwThermalSlowdown": "hardware thermal slowdown",
        "HwPowerBrakeSlowdown": "hardware power brake",
        "DisplayClockSetting": "display clocks",
    }
    for constant, name in constants.items():
        assert throttle_reasons(getattr(pynvml, f"nvmlClocksEventReason{constant}")) == (name,)


@pytest.mark.parametrize("columns", [DeviceStates, DeviceTraffic])
def test_a_column_is_empty_or_whole(columns):
    name = list(columns.model_fields)[1]
    columns(time_ns=[1, 2])
    columns(time_ns=[1, 2], **{name: [None, 5]})
    with pytest.raises(ValidationError, match="one entry for each of 2 readings"):
        columns(time_ns=[1, 2], **{name: [5]})


def test_a_watched_launch_survives_json():
    result = watched(sample(make_twin(), until_s=0.5)[0])
    assert CellResult.model_validate_json(result.model_dump_json()) == result


def test_a_launch_stored_by_an_earlier_version_can_be_read():
    stored = watched(None).model_dump()
    del stored["node"]
    assert CellResult.model_validate(stored).node is None
