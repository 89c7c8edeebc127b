"""Watches one machine over one launch: its GPUs, if the ranks use any, and its processors."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalebench.launch.monitor.nvml import PROC, stat_fields
from scalebench.launch.monitor.sampler import DeviceSampler
from scalebench.records.measured.trace import HostLoad, NodeTrack
from scalebench.spec import Device

USER, NICE, SYSTEM, STEAL = 0, 1, 2, 7
"""Places in a line of ``/proc/stat``; see proc(5). Guests' time is part of USER and NICE."""
UTIME, CUTIME = 11, 13
"""Places in `stat_fields`: user and system time of the process, then of children waited for."""


@dataclass(frozen=True)
class Reading:
    """Counters at one moment, SI; None: not readable."""

    time_ns: int
    num_processors: int | None
    busy_s: float | None
    steal_s: float | None
    job_s: float | None
    swap_in_bytes: int | None
    swap_out_bytes: int | None


class HostWatch:
    """Reads the counters when made and again at `stop`.

    Args:
        parents: Processes whose time, with that of the children they have waited for, is the
            job's; this process is counted in any case, without its children.
        proc: Where the process file system is.
        processors: What to count; None: those that this process may run on.
    """

    def __init__(
        self, parents: Sequence[int], proc: Path = PROC, processors: Sequence[int] | None = None
    ) -> None:
        self.parents = tuple(parents)
        self.proc = proc
        self.processors = processors
        self.reasons: dict[str, str] = {}
        self.begun = self._read()

    def stop(self) -> HostLoad:
        """Read again and return the difference; raises nothing."""
        begun, ended = self.begun, self._read()
        wall_s = max(ended.time_ns - begun.time_ns, 1) / 1e9
        return HostLoad(
            wall_s=wall_s,
            num_processors=ended.num_processors,
            busy_cpu_s=_difference(begun.busy_s, ended.busy_s),
            steal_cpu_s=_difference(begun.steal_s, ended.steal_s),
            job_cpu_s=_difference(begun.job_s, ended.job_s),
            swap_in_bytes=_whole(_difference(begun.swap_in_bytes, ended.swap_in_bytes)),
            swap_out_bytes=_whole(_difference(begun.swap_out_bytes, ended.swap_out_bytes)),
            unavailable=dict(self.reasons),
        )

    def _read(self) -> Reading:
        processors = self._guarded(("num_processors", "busy_cpu_s", "steal_cpu_s"), self._stat)
        swap = self._guarded(("swap_in_bytes", "swap_out_bytes"), self._swap)
        job = self._guarded(("job_cpu_s",), self._job)
        return Reading(
            time_ns=time.monotonic_ns(),
            num_processors=_whole(processors[0]),
            busy_s=processors[1],
            steal_s=processors[2],
            job_s=job[0],
            swap_in_bytes=_whole(swap[0]),
            swap_out_bytes=_whole(swap[1]),
        )

    def _guarded(
        self, fields: Sequence[str], read: Callable[[], Sequence[float]]
    ) -> Sequence[float | None]:
        try:
            return read()
        except (OSError, ValueError, IndexError, KeyError) as error:
            for name in fields:
                self.reasons[name] = f"{type(error).__name__}: {error}"
            return [None] * len(fields)

    def _stat(self) -> Sequence[float]:
        """Return how many processors are counted, and their busy and stolen time in seconds."""
        lines = (self.proc / "stat").read_text().splitlines()
        times = {
            name: [int(x) for x in rest.split()]
            for name, _, rest in (line.partition(" ") for line in lines)
            if name.startswith("cpu")
        }
        there = {int(name[3:]) for name in times if name != "cpu"}
        own = os.sched_getaffinity(0) if self.processors is None else self.processors
        counted = there.intersection(own)
        if not counted or not any(times["cpu"]):
            raise ValueError("/proc/stat counts no processor's time")
        names = ["cpu"] if counted == there else [f"cpu{i}" for i in counted]
        busy = sum(times[name][i] for name in names for i in (USER, NICE, SYSTEM))
        steal = sum(times[name][STEAL] for name in names)
        return len(counted), busy / _ticks_per_s(), steal / _ticks_per_s()

    def _swap(self) -> Sequence[float]:
        """Return the bytes that the machine has read from swap and written to it."""
        lines = (self.proc / "vmstat").read_text().splitlines()
        counters = dict(line.split() for line in lines)
        page = os.sysconf("SC_PAGESIZE")
        return int(counters["pswpin"]) * page, int(counters["pswpout"]) * page

    def _job(self) -> Sequence[float]:
        """Return the CPU seconds of this process, and of the parents with their children."""
        own = stat_fields(os.getpid(), self.proc)[UTIME : UTIME + 2]
        theirs = [
            ticks
            for pid in self.parents
            for ticks in stat_fields(pid, self.proc)[UTIME : CUTIME + 2]
        ]
        return (sum(int(ticks) for ticks in [*own, *theirs]) / _ticks_per_s(),)


def _ticks_per_s() -> int:
    return os.sysconf("SC_CLK_TCK")


def _difference(begun: float | None, ended: float | None) -> float | None:
    return None if begun is None or ended is None else ended - begun


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


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
        self, device: Device, uuids: Sequence[str] | None, parents: Sequence[int], nvml: Any = None
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


def joined(host: NodeTrack | None, gpus: NodeTrack | None) -> NodeTrack | None:
    """Return the processors of one track and the GPUs of another; without that, the first."""
    if host is None or gpus is None:
        return host
    reasons = {name: why for name, why in host.unavailable.items() if name == "host"}
    return gpus.model_copy(update={"host": host.host, "unavailable": gpus.unavailable | reasons})


def of_gpus(watched: Sequence[NodeTrack]) -> NodeTrack:
    """Return one track of what several processes watched of GPUs."""
    devices = {device.uuid: device for track in watched for device in track.devices}
    costs = [track.sampler_cpu_s for track in watched if track.sampler_cpu_s is not None]
    unavailable = {name: why for track in watched for name, why in track.unavailable.items()}
    if not devices and not unavailable:
        unavailable = {"devices": NOT_TOLD}
    return NodeTrack(
        devices=list(devices.values()),
        num_ticks=max((track.num_ticks for track in watched), default=0),
        sampler_cpu_s=sum(costs) if costs else None,
        unavailable=unavailable,
    )
