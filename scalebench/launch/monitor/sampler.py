"""One thread that reads the node's GPUs while a launch runs.

Ten readings a second: the energy counter moves every 20 to 100 ms, clocks and throttling change
in tenths of a second, and ten cost little (`NodeTrack.sampler_cpu_s` tells how much). Memory,
processes and links are dearer to ask, and NVML counts 20 ms for each PCIe direction before it
answers: they are read once a second, one device per wake, so that no wake waits for long.

A call into a driver at fault may never return. So the thread is a daemon, `stop` waits for it a
limited time, and what it had read by then is the result.

``python -m scalebench.launch.monitor.sampler`` watches for a process that must not touch a driver:
the first line that it reads is JSON, the UUIDs of the GPUs and the launch's processes; with the
next, or the end of the input, it ends, and writes what it has seen as a `NodeTrack`.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from scalebench.launch.monitor.nvml import (
    STATE,
    TRAFFIC,
    Device,
    Query,
    Value,
    load_nvml,
    open_devices,
    reason_of,
)
from scalebench.records.measured.trace import (
    DeviceStates,
    DeviceTrack,
    DeviceTraffic,
    NodeTrack,
)

PERIOD_S = 0.1
TRAFFIC_PERIOD_S = 1.0
STOP_LIMIT_S = 2.0
HIDDEN = "NVML showed no process of this launch on the device, so it may hide others, too"

NO_DEVICE = "torch and NVML show no device"


@dataclass
class _Log:
    """What was read of one device: rows, each appended whole."""

    device: Device
    states: list[tuple[int, dict[str, Value]]] = field(default_factory=list)
    traffic: list[tuple[int, dict[str, Value]]] = field(default_factory=list)

    def track(self) -> DeviceTrack:
        """Return the rows as columns; also while the thread hangs in a call."""
        states, traffic = list(self.states), list(self.traffic)
        columns = _columns(traffic, TRAFFIC)
        reasons = _reasons(self.device, len(states), len(traffic))
        if columns["foreign_processes"] and not any(columns["own_processes"]):
            columns |= {"foreign_processes": [], "foreign_bytes": []}
            reasons |= {"foreign_processes": HIDDEN, "foreign_bytes": HIDDEN}
        return DeviceTrack(
            uuid=self.device.uuid,
            name=self.device.name,
            index=self.device.index,
            states=DeviceStates.model_validate(_columns(states, STATE)),
            traffic=DeviceTraffic.model_validate(columns),
            unavailable=reasons,
        )


class DeviceSampler:
    """Samples the devices with these UUIDs from `start` to `stop`; may be started again.

    Args:
        uuids: As CUDA tells them; None: every device that NVML shows.
        nvml: Stands in for the ``pynvml`` module.
        family: Processes that are of the launch, with all that descend from them, besides this one.
        clock_ns: Tells the time of a reading.
        period_s: Seconds from reading to reading.
    """

    def __init__(
        self,
        uuids: Sequence[str] | None = None,
        nvml: Any = None,
        family: Sequence[int] = (),
        clock_ns: Callable[[], int] = time.monotonic_ns,
        period_s: float = PERIOD_S,
    ) -> None:
        self.uuids = uuids
        self.nvml = nvml
        self.family = (os.getpid(), *family)
        self.clock_ns = clock_ns
        self.period_s = period_s
        self.logs: list[_Log] = []
        self.num_ticks = 0
        self.cpu_s: float | None = None
        self.unavailable: dict[str, str] = {}
        self.thread: threading.Thread | None = None
        self.stopping = threading.Event()

    def start(self) -> None:
        """Begin to sample; returns at once and raises nothing."""
        self.thread = threading.Thread(target=self._run, name="device sampler", daemon=True)
        self.thread.start()

    def stop(self, limit_s: float = STOP_LIMIT_S) -> list[DeviceTrack]:
        """End sampling and return what was read, after ``limit_s`` at the latest."""
        self.stopping.set()
        if self.thread is not None:
            self.thread.join(limit_s)
            if self.thread.is_alive():
                self.unavailable["sampler"] = f"NVML had not answered {limit_s:g} s after the end"
        return self.tracks()

    def result(self) -> NodeTrack:
        """End sampling and return what there is of it."""
        return NodeTrack(
            devices=self.stop(),
            num_ticks=self.num_ticks,
            sampler_cpu_s=self.cpu_s,
            unavailable=dict(self.unavailable),
        )

    def tracks(self) -> list[DeviceTrack]:
        """Return what has been read so far."""
        return [log.track() for log in self.logs]

    def _run(self) -> None:
        try:
            if self.open():
                self._sample_until_stopped()
        except Exception as error:  # the launch goes on, without these numbers
            self.unavailable["sampler"] = reason_of(error)
        finally:
            self.cpu_s = time.thread_time()
            self._shut_down()

    def _sample_until_stopped(self) -> None:
        due = time.monotonic()
        while True:
            self.tick()
            due = max(due + self.period_s, time.monotonic())
            if self.stopping.wait(due - time.monotonic()):
                self.read_states()  # brackets the last window
                return

    def open(self) -> bool:
        """Open NVML and the devices; False: there is nothing to sample, and why is noted."""
        if self.nvml is None:
            self.nvml, reason = load_nvml()
            if reason is not None:
                self.unavailable["devices"] = reason
                return False
        try:
            self.nvml.nvmlInit()
            devices, refused = open_devices(self.nvml, self.uuids, self.family)
        except Exception as error:
            self.unavailable["devices"] = reason_of(error)
            return False
        self.unavailable |= refused
        if not devices and not refused:
            self.unavailable["devices"] = NO_DEVICE
        self.logs = [_Log(device) for device in devices]
        return bool(devices)

    def tick(self) -> None:
        """Read the state of every device, and the traffic of the one that waits longest for it."""
        self.read_states()
        now_ns = self.clock_ns()
        log = min(self.logs, key=_last_traffic_ns)
        if now_ns - _last_traffic_ns(log) >= TRAFFIC_PERIOD_S * 1e9:
            log.traffic.append((now_ns, log.device.read(TRAFFIC)))
        self.num_ticks += 1

    def read_states(self) -> None:
        """Read the state of every device."""
        for log in self.logs:
            log.states.append((self.clock_ns(), log.device.read(STATE)))

    def _shut_down(self) -> None:
        try:
            self.nvml.nvmlShutdown()
        except Exception:  # never opened, or lost: nothing to give back
            return


def _last_traffic_ns(log: _Log) -> float:
    return log.traffic[-1][0] if log.traffic else float("-inf")


def _columns(
    rows: Sequence[tuple[int, dict[str, Value]]], queries: Sequence[Query]
) -> dict[str, list[Value]]:
    """Return field → one entry per row; a field that was never read has none."""
    names = [name for query in queries for name in query.fields]
    columns = {name: [values[name] for _, values in rows] for name in names}
    known = {n: c if any(v is not None for v in c) else [] for n, c in columns.items()}
    return {"time_ns": [time_ns for time_ns, _ in rows], **known}


def _reasons(device: Device, num_states: int, num_traffic: int) -> dict[str, str]:
    """Return field → why it is null; where it is so in some readings only, in how many."""
    state_fields = {name for query in STATE for name in query.fields}
    given_up = {name for query in device.given_up for name in query.fields}
    reasons = {}
    for name, counts in list(device.faults.items()):
        total = num_states if name in state_fields else num_traffic
        number, what = sum(counts.values()), "; ".join(counts)
        in_some = number < total and name not in given_up
        reasons[name] = f"{what} (in {number} of {total} readings)" if in_some else what
    return reasons


def main() -> None:
    """Watch from the first line to the second."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is for the ranks: their end is the end
    asked = json.loads(sys.stdin.readline())
    sampler = DeviceSampler(asked["uuids"], family=asked["family"])
    sampler.start()
    sys.stdin.readline()
    print(sampler.result().model_dump_json(), flush=True)
    os._exit(0)  # whether or not the driver has answered


if __name__ == "__main__":
    main()
