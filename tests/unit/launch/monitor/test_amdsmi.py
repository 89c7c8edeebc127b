"""AMD's GPUs: the real ``amdsmi`` asks a ``libamd_smi.so`` that gcc builds here."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scalebench.launch.monitor import nvml as reader
from scalebench.launch.monitor.sampler import DeviceSampler
from tests.examples import cases

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("amdsmi") is None,
    reason="amdsmi is not installed: the dev extra has it",
)

ANSWERS = (Path(__file__).parents[3] / "standins" / "amd_smi.c").read_text()
FIRST = "33643739-6135-6231-6333-663565316237"
SECOND = "30303739-6135-6231-6333-663565316238"
"""As torch writes the 16 bytes that HIP has: the digits of the serial number."""


@pytest.fixture(scope="module")
def rocm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rocm") / "lib"
    folder.mkdir()
    origin = importlib.util.find_spec("amdsmi").origin
    binding = Path(origin).with_name("amdsmi_wrapper.py").read_text()
    wanted = set(re.findall(r"_libraries\['libamd_smi\.so'\]\.(\w+)", binding))
    missing = sorted(name for name in wanted if f" {name}(" not in ANSWERS)
    code = ANSWERS + "".join(f"int {name}(void) {{ return NOT_SUPPORTED; }}\n" for name in missing)
    (folder / "smi.c").write_text(code)
    library = folder / "libamd_smi.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, folder / "smi.c"], check=True)
    return folder.parent


@pytest.fixture
def on_amd(rocm, tmp_path, monkeypatch):
    def become(path=rocm, driver=True, nvidia=False):
        for name in [name for name in sys.modules if name.partition(".")[0] == "amdsmi"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setenv("ROCM_PATH", os.fspath(path))
        monkeypatch.delenv("ROCM_HOME", raising=False)
        for name, there in (("AMD_DRIVER", driver), ("NVIDIA_DRIVER", nvidia)):
            monkeypatch.setattr(reader, name, tmp_path if there else tmp_path / "none")

    return become


def sampled(*uuids):
    sampler = DeviceSampler(uuids or None)
    if sampler.open():
        sampler.tick()
        sampler.tick()
    return sampler.tracks(), sampler.unavailable


def test_energy_clocks_temperature_memory_and_processes_are_read_in_si_units(on_amd):
    on_amd()
    (device,), unavailable = sampled(FIRST)
    assert unavailable == {}
    assert (device.name, device.uuid, device.index) == ("AMD Instinct MI300X", f"GPU-{FIRST}", 0)
    states, traffic = device.states, device.traffic
    first, second = states.energy_j
    assert second - first == pytest.approx(1.525)  # 100,000 counts of 15.25 µJ
    assert states.power_w == [730.0, 730.0]
    assert (states.sm_clock_hz[0], states.memory_clock_hz[0]) == (2_100_000_000, 1_300_000_000)
    assert states.temperature_c[0] == 61
    assert traffic.memory_used_bytes[0] == 283 << 20
    assert (traffic.own_processes[0], traffic.foreign_processes[0]) == (1, 0)


def test_what_amd_does_not_tell_is_null_with_the_reason(on_amd):
    on_amd()
    (device,), _ = sampled(SECOND)
    assert device.index == 1
    assert (device.states.energy_j, device.states.memory_clock_hz) == ([], [])
    assert "amdsmi: " in device.unavailable["energy_j"]
    assert "NOT_SUPPORTED" in device.unavailable["energy_j"]
    assert device.unavailable["memory_clock_hz"] == "amdsmi: clk is not told here"
    assert device.unavailable["throttle_bits"] == reader.NO_SUCH_SYMBOL
    assert device.states.power_w == [250.0, 250.0]


def test_every_device_is_read_when_none_is_named_and_an_unknown_one_is_refused(on_amd):
    on_amd()
    assert [device.uuid for device in sampled()[0]] == [f"GPU-{FIRST}", f"GPU-{SECOND}"]
    assert sampled("0" * 8)[1]["0" * 8].startswith("amdsmi: there is no device")


def test_without_the_library_of_amd_it_is_said_what_to_install(on_amd, tmp_path, capfd):
    on_amd(tmp_path)
    reason = sampled()[1]["devices"]
    assert "libamd_smi.so" in reason and "scalebench[rocm]" in reason
    assert capfd.readouterr() == ("", "")


@cases("drivers", {"nvidia": True}, {"driver": False}, ids=str)
def test_nvml_is_asked_unless_amds_driver_is_the_only_one(on_amd, drivers):
    on_amd(**drivers)
    assert reader.load_nvml()[0].__name__ == "pynvml"
