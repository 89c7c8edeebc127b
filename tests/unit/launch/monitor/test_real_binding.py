"""What the real nvidia-ml-py makes of libraries and devices of several kinds."""

import os

import pytest

from scalebench.launch.monitor.nvml import TRAFFIC
from scalebench.launch.monitor.sampler import HIDDEN, DeviceSampler
from tests.standins.nvml import SLICE, A, B, nvml

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


@pytest.mark.parametrize(
    ("variants", "lines", "expected"),
    [
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
        ((), ("* power error 777",), {"power_w": "NVML: Unknown Error"}),
    ],
)  # fmt: skip
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
