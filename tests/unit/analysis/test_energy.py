"""Energy per sample, against devices whose power is known."""

import pynvml
import pytest

from scalebench.analysis.energy import energy_per_sample
from scalebench.records.measured.telemetry import DeviceStates
from tests.builders.runs import make_cell, make_result
from tests.builders.watched import A, make_twin, sample, watched

SAMPLES = 10 * 32  # of one clean window


def watched_twin(twin=None, **kwargs):
    return watched(sample(twin or make_twin())[0], **kwargs)


def with_states(result, **changes):
    """The result with columns of the first device's states replaced."""
    first, *others = result.node.devices
    states = DeviceStates(**{**first.states.model_dump(), **changes})
    devices = [first.model_copy(update={"states": states}), *others]
    return result.model_copy(update={"node": result.node.model_copy(update={"devices": devices})})


def test_the_energy_of_a_known_constant_power_is_exact():
    energy = energy_per_sample(watched_twin())
    assert energy.j_per_sample == pytest.approx((300 + 450) * 4.0 / SAMPLES, rel=1e-9)
    assert (energy.source, energy.reason) == ("counter", None)


def test_without_a_counter_power_is_integrated_and_that_is_said():
    twin = make_twin()
    twin.fail("nvmlDeviceGetTotalEnergyConsumption", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    energy = energy_per_sample(watched_twin(twin))
    assert energy.j_per_sample == pytest.approx(750 * 4.0 / SAMPLES, rel=1e-9)
    assert energy.source == "power"


def test_a_counter_that_was_reset_is_not_believed():
    result = watched_twin(uuids=[A])
    counter = result.node.devices[0].states.energy_j
    result = with_states(result, energy_j=[*counter[:30], *[30.0 * i for i in range(41)]])
    energy = energy_per_sample(result)
    assert energy.source == "power"
    assert energy.j_per_sample == pytest.approx(300 * 4.0 / SAMPLES, rel=1e-9)


def test_readings_that_end_too_early_do_not_count_as_less_energy():
    node, _ = sample(make_twin(), until_s=4.0)
    energy = energy_per_sample(watched(node))
    assert energy.j_per_sample is None
    assert "do not cover the whole window" in energy.reason


@pytest.mark.parametrize(("length_s", "measurable"), [(1.99, False), (2.0, True)])
def test_windows_under_two_seconds_are_refused(length_s, measurable):
    energy = energy_per_sample(watched_twin(windows_s=[(1.0, 1.0 + length_s)]))
    assert (energy.j_per_sample is not None) is measurable
    assert ("energy needs 2 s" in (energy.reason or "")) is not measurable


def test_every_null_has_a_reason():
    cpu = make_result(make_cell("ddp", 2), node=sample(make_twin())[0])
    assert energy_per_sample(cpu).reason == "the ranks ran on the CPU"
    assert energy_per_sample(watched(None)).reason == "the node was not watched"
    strange = watched_twin(uuids=["cccc"])
    assert energy_per_sample(strange).reason == "device cccc was not sampled"
    untimed = watched_twin()
    ranks = [r.model_copy(update={"blocks": [r.blocks[0].model_copy(update={"end_ns": None})]})
             for r in untimed.ranks]  # fmt: skip
    assert "of the warm-up" in energy_per_sample(untimed.model_copy(update={"ranks": ranks})).reason
    silent = [r.model_copy(update={"facts": {}}) for r in untimed.ranks]
    assert "which device" in energy_per_sample(untimed.model_copy(update={"ranks": silent})).reason
    twin = make_twin()
    for name in ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage"):
        twin.fail(name, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    reason = energy_per_sample(watched_twin(twin)).reason
    assert A in reason and reason.count("Function Not Found") == 2
