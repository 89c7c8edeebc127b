from scalebench.records.measured.telemetry import throttle_reasons


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
