"""Watches one machine over one launch: its GPUs, if the ranks use any, and its processors."""

from collections.abc import Sequence
from typing import Any

from scalebench.launch.monitor.host import HostWatch
from scalebench.launch.monitor.sampler import DeviceSampler
from scalebench.records.telemetry import NodeTrack
from scalebench.spec import Device

ON_CPU = "the ranks ran on the CPU"


class NodeWatch:
    """Watches from entering the block to leaving it; `track` is the result afterwards.

    Args:
        device: What the ranks train on; ``cpu``: no GPU is looked at.
        uuids: The GPUs that the ranks may use, as CUDA tells them; None: every one.
        parents: Processes that have started the ranks and wait for them.
        nvml: Stands in for the ``pynvml`` module.
    """

    def __init__(
        self,
        device: Device,
        uuids: Sequence[str] | None,
        parents: Sequence[int],
        nvml: Any = None,
    ) -> None:
        self.parents = parents
        self.sampler = DeviceSampler(uuids, nvml, parents) if device == "cuda" else None
        self.track: NodeTrack | None = None

    def __enter__(self) -> "NodeWatch":
        self.host = HostWatch(self.parents)
        if self.sampler is not None:
            self.sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        host = self.host.stop()
        if self.sampler is None:
            self.track = NodeTrack(host=host, unavailable={"devices": ON_CPU})
            return
        devices = self.sampler.stop()
        self.track = NodeTrack(
            devices=devices,
            host=host,
            num_ticks=self.sampler.num_ticks,
            sampler_cpu_s=self.sampler.cpu_s,
            unavailable=dict(self.sampler.unavailable),
        )
