from scalebench.records.run import CellResult
from scalebench.records.telemetry import throttle_reasons
from tests.builders.watched import watched


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


def test_a_launch_stored_by_an_earlier_version_can_be_read():
    stored = watched(None).model_dump()
    del stored["node"]
    assert CellResult.model_validate(stored).node is None
