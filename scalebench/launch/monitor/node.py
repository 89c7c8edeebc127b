"""Watches one machine over one launch: its GPUs, if the ranks use any, and its processors."""

from collections.abc import Sequence
from typing import Any

from scalebench.launch.monitor.host import HostWatch
from scalebench.launch.monitor.sampler import DeviceSampler
from scalebench.records.telemetry import NodeTrack
from scalebench.spec import Device

ON_CPU = "the ranks ran on the CPU"
NOT_TOLD = "no process of the launch told of its GPU"


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
        self.track = self.sampler.result().model_copy(update={"host": host})


def joined(host: NodeTrack, watched: Sequence[NodeTrack]) -> NodeTrack:
    """Return one track of what several processes watched of GPUs, and one of the processors."""
    devices = {device.uuid: device for track in watched for device in track.devices}
    costs = [track.sampler_cpu_s for track in watched if track.sampler_cpu_s is not None]
    unavailable = {name: why for track in watched for name, why in track.unavailable.items()}
    if not devices and not unavailable:
        unavailable = {"devices": NOT_TOLD}
    return NodeTrack(
        devices=list(devices.values()),
        host=host.host,
        num_ticks=max((track.num_ticks for track in watched), default=0),
        sampler_cpu_s=sum(costs) if costs else None,
        unavailable=unavailable | {n: why for n, why in host.unavailable.items() if n == "host"},
    )
