import os
import time

import pynvml
import pytest

from scalebench.launch.monitor.node import HostWatch
from scalebench.launch.monitor.nvml import TRAFFIC
from scalebench.launch.monitor.sampler import HIDDEN, DeviceSampler
from tests.builders.watched import make_twin, sample
from tests.examples import cases
from tests.standins.nvml import SLICE, A, B, nvml


@pytest.fixture
def stuck():
    """A twin whose functions can be made to hang; they come back when the test is over."""
    twin = make_twin()
    yield twin
    twin.release.set()


def test_a_driver_that_never_answers_does_not_hold_up_the_end(stuck):
    stuck.hanging.add("nvmlDeviceGetPowerUsage")
    sampler = DeviceSampler([A], stuck)
    sampler.start()
    time.sleep(0.1)
    begun = time.monotonic()
    (track,) = sampler.stop(limit_s=0.2)
    assert time.monotonic() - begun < 1.0
    assert track.states.time_ns == []  # the first reading never ended
    assert sampler.unavailable["sampler"] == "NVML had not answered 0.2 s after the end"
    assert sampler.thread.daemon


@cases("code", pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_TIMEOUT)
def test_a_fault_in_the_middle_leaves_what_was_read_and_the_other_fields(code):
    twin = make_twin()
    twin.fail("nvmlDeviceGetPowerUsage", code, from_s=0.5)
    device = sample(twin, until_s=1.0)[0].devices[0]
    assert device.states.power_w == [300.0] * 5 + [None] * 6
    assert device.unavailable["power_w"] == f"NVML: {pynvml.NVMLError(code)} (in 6 of 11 readings)"
    assert list(device.unavailable) == ["power_w"]
    assert None not in device.states.energy_j


JOB = 4000
LINES = {"cpu0": (0, 0, 0, 0, 0, 0, 0, 0), "cpu1": (0, 0, 0, 0, 0, 0, 0, 0)}


def write_proc(proc, cpus=LINES, job_ticks=(0, 0, 0, 0), own_ticks=(0, 0), swap=(0, 0)):
    """A /proc with two processors, this process, and a job whose name is hard to parse."""
    total = [sum(column) for column in zip(*cpus.values(), strict=True)]
    rows = {"cpu": [n + 1 for n in total], **cpus}
    text = "\n".join(f"{name} {' '.join(map(str, row))} 0 0" for name, row in rows.items())
    (proc / "stat").write_text(f"{text}\nintr 5\n")
    (proc / "vmstat").write_text(f"nr_free 1\npswpin {swap[0]}\npswpout {swap[1]}\n")
    for pid, ticks in ((os.getpid(), (*own_ticks, 900, 900)), (JOB, job_ticks)):
        (proc / str(pid)).mkdir(exist_ok=True)
        fields = ["S", "1", *["0"] * 9, *map(str, ticks), *["0"] * 20]
        (proc / str(pid) / "stat").write_text(f"{pid} (a) job (x) {' '.join(fields)}\n")


def watch(proc, processors=(0, 1)):
    write_proc(proc)
    return HostWatch([JOB], proc, processors)


def test_loads_are_differences_in_seconds(tmp_path):
    begun = watch(tmp_path)
    # user nice system idle iowait irq softirq steal, ticks of 10 ms
    cpus = {"cpu0": (100, 20, 30, 50, 9, 40, 50, 7), "cpu1": (50, 0, 0, 100, 0, 0, 0, 3)}
    write_proc(tmp_path, cpus, job_ticks=(40, 10, 60, 20), own_ticks=(5, 5), swap=(3, 4))
    load = begun.stop()
    assert load.num_processors == 2
    assert load.busy_cpu_s == pytest.approx(2.0)  # neither idle nor interrupts
    assert load.steal_cpu_s == pytest.approx(0.1)
    assert load.job_cpu_s == pytest.approx(1.4)  # without our own children: they are not the job's
    page = os.sysconf("SC_PAGESIZE")
    assert (load.swap_in_bytes, load.swap_out_bytes) == (3 * page, 4 * page)
    assert load.unavailable == {}


def test_what_cannot_be_read_is_null_with_a_reason(tmp_path):
    load = HostWatch([JOB], tmp_path).stop()
    known = ("busy_cpu_s", "steal_cpu_s", "job_cpu_s", "swap_in_bytes", "num_processors")
    assert [getattr(load, name) for name in known] == [None] * 5
    assert set(known) <= set(load.unavailable)
    assert "FileNotFoundError" in load.unavailable["busy_cpu_s"]
    assert (load.foreign_cores, load.steal_fraction) == (None, None)


def test_a_machine_that_counts_nothing_is_not_taken_for_an_idle_one(tmp_path):
    write_proc(tmp_path)
    (tmp_path / "stat").write_text("cpu 0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n")
    load = HostWatch([JOB], tmp_path, [0]).stop()
    assert load.busy_cpu_s is None
    assert "counts no processor's time" in load.unavailable["busy_cpu_s"]


__all__ = ["nvml"]
ELSEWHERE = "a process in another PID namespace: its owner is not known"
NOT_FOUND, DENIED = "NVML: Function Not Found", "NVML: Insufficient Permissions"


def sampled(uuids, family=()):
    sampler = DeviceSampler(uuids, family=family)
    assert sampler.open(), sampler.unavailable
    for log in sampler.logs:
        sampler.read_states()
        log.traffic.append((0, log.device.read(TRAFFIC)))
    return sampler.tracks()


@cases("variants, lines, expected", 
        ((), (), {"temperature_c": 61, "throttle_bits": 8, "energy_j": 5e6, "power_w": 300.0}),
        (("OLD",), (), {"temperature_c": 55, "throttle_bits": 4, "own_processes": 0}),
        (("NEW",), (), {"temperature_c": 61, "throttle_bits": 8, "own_processes": 0}),
        ((), ("* temperature_v error 3",), {"temperature_c": 55}),
        ((), ("* temperature_v error 25",), {"temperature_c": 55}),
        ((), ("* event_reasons error 3",), {"throttle_bits": 4}),
        ((), (), {"nvlink_rx_bytes": 4000 * 1024, "nvlink_tx_bytes": 8000 * 1024}),
        ((), (), {"pcie_rx_byte_per_s": 2 * 10**9, "pcie_tx_byte_per_s": 15 * 10**8}),
        ((), (), {"sm_clock_hz": 1_980_000_000, "memory_used_bytes": 12_884_901_888}),
        ((), ("* processes {me} 4096 1 1024 1 -1",), {"own_processes": 1, "foreign_processes": 2}),
        (("OLD",), ("* processes {me} 4096 1 1024",), {"foreign_bytes": 1024}),
        ((), ("* processes {sibling} 5",), {"own_processes": 1, "foreign_processes": 0}),
        (("SPARSE",), (), {"energy_j": NOT_FOUND, "nvlink_tx_bytes": NOT_FOUND, "power_w": 300.0}),
        ((), ("* nvlink_tx error 3",), {"nvlink_rx_bytes": "NVML: Not Supported"}),
        ((), ("* processes error 4",), {"foreign_processes": DENIED, "power_w": 300.0}),
        ((), ("* processes 1073741831 5",), {"foreign_processes": ELSEWHERE}),
        ((), ("* processes",), {"foreign_processes": HIDDEN, "own_processes": 0}),
        ((), ("* power error 999",), {"power_w": "NVML: Unknown Error", "temperature_c": 61}),
        ((), ("* power error 777",), {"power_w": "NVML: Unknown Error"}))  # fmt: skip
def test_what_a_library_and_a_device_tell(nvml, variants, lines, expected):
    """A text is the reason of a null; ``sibling`` is a process of the same launch."""
    sibling = os.getppid()
    nvml(*(line.format(me=os.getpid(), sibling=sibling) for line in lines), variants=variants)
    (device,) = sampled([A], [sibling] if any("{sibling}" in line for line in lines) else [])
    columns = device.states.model_dump() | device.traffic.model_dump()
    told = {name: (columns[name] or [device.unavailable.get(name)])[0] for name in expected}
    assert told == expected


def test_devices_are_opened_by_uuid_whatever_their_order(nvml):
    """CUDA's first device is NVML's second here, and torch writes no prefix."""
    nvml()
    bare = [uuid.partition("-")[2] for uuid in (B, A, SLICE)]
    first, second, of_slice = sampled(bare)
    assert [(d.uuid, d.index) for d in (first, second)] == [(B, 1), (A, 0)]
    assert [d.states.power_w[0] for d in (first, second)] == [450.0, 300.0]
    assert of_slice.uuid == SLICE and of_slice.states.sm_clock_hz[0] == 1_980_000_000
    assert of_slice.unavailable["energy_j"] == "NVML: Not Supported; this is a MIG slice"
    assert [d.uuid for d in sampled(None)] == [A, B]


def test_a_uuid_that_nvml_does_not_know_is_named_and_the_others_are_read(nvml):
    nvml()
    sampler = DeviceSampler(["no-such", A])
    assert sampler.open() and len(sampler.logs) == 1
    assert sampler.unavailable == {"no-such": "NVML: Not Found"}
