"""Launches that were watched: a twin of two GPUs, sampled on its own clock, without a thread."""

import os
from collections.abc import Sequence
from typing import Any

from scalebench.launch.monitor.sampler import PERIOD_S, DeviceSampler
from scalebench.records.measured.rank import Block
from scalebench.records.measured.trace import HostLoad, NodeTrack
from scalebench.records.run import CellResult
from tests.builders.runs import make_cell, make_record, make_result
from tests.recorded.nvml_twin import NvmlTwin, load

A = "GPU-aaaaaaaa-0000-1111-2222-000000000000"
B = "GPU-bbbbbbbb-0000-1111-2222-000000000001"
BEGIN_NS = 5_000_000_000_000
"""The monotonic clock when the recording begins."""


def make_twin(**answers: Any) -> NvmlTwin:
    """The recorded devices; ``answers`` replace what a call answers, on both, at all times.

    A name stands for the call of that name, or for the one whose key begins with it.
    """
    document = load()
    for device in document["devices"]:
        ours = [{"pid": os.getpid(), "usedGpuMemory": 1 << 30}]
        _replace(device, "nvmlDeviceGetComputeRunningProcesses", ours)
        for name, answer in answers.items():
            _replace(device, name, answer)
    return NvmlTwin(document)


def _replace(device: dict[str, Any], name: str, answer: Any) -> None:
    keys = [key for key in device["calls"] if key == name or key.startswith(f"{name}[")]
    for key in keys or [name]:
        device["calls"][key] = {"time_s": [0.0], "answer": [answer]}


def sample(
    twin: NvmlTwin, uuids: Sequence[str] | None = (A, B), until_s: float = 7.0
) -> tuple[NodeTrack, DeviceSampler]:
    """Sample the twin ten times a second from its beginning on."""
    sampler = DeviceSampler(uuids, twin, clock_ns=lambda: BEGIN_NS + round(twin.now_s * 1e9))
    if sampler.open():
        for i in range(round(until_s / PERIOD_S) + 1):
            twin.now_s = round(i * PERIOD_S, 6)
            sampler.tick()
    devices = sampler.tracks()
    track = NodeTrack(devices=devices, host=make_host(), unavailable=sampler.unavailable)
    return track, sampler


def make_host(**changes: Any) -> HostLoad:
    """Ten seconds of two processors that only the launch has used."""
    fields: dict[str, Any] = {
        "wall_s": 10.0,
        "num_processors": 2,
        "busy_cpu_s": 15.0,
        "steal_cpu_s": 0.0,
        "job_cpu_s": 15.0,
        "swap_in_bytes": 0,
        "swap_out_bytes": 0,
    }
    return HostLoad(**{**fields, **changes})


def watched(
    node: NodeTrack | None,
    windows_s: Sequence[tuple[float, float]] = ((1.0, 5.0),),
    uuids: Sequence[str] = (A, B),
    **changes: Any,
) -> CellResult:
    """A launch with one rank per device, 32 samples a step, ten steps in each clean window.

    Args:
        node: What was watched.
        windows_s: Start and end of each clean block on the recording's clock.
        uuids: What each rank says of its device, as torch does: without ``GPU-``.
    """
    cell = make_cell("ddp", len(uuids), device="cuda", backend="nccl")
    blocks = [
        Block(
            phase="clean",
            first=10 * i,
            count=10,
            start_ns=BEGIN_NS + round(start * 1e9),
            end_ns=BEGIN_NS + round(end * 1e9),
        )
        for i, (start, end) in enumerate(windows_s)
    ]
    num_steps = 10 * len(blocks)
    ranks = [
        make_record(
            rank,
            step_s=[0.1] * num_steps,
            loss=[5.0] * num_steps,
            blocks=blocks,
            facts={"device_uuid": uuid.removeprefix("GPU-")},
        )
        for rank, uuid in enumerate(uuids)
    ]
    return make_result(cell, ranks=ranks, node=node, **changes)
