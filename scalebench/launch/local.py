"""Ranks on this machine, forked from a process that has torch imported already."""

import fcntl
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from scalebench.catalog import CustomTarget
from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.launch.base import Launched, ProbeFailed
from scalebench.launch.first_failure import RankExit, first_failure, log_tail
from scalebench.launch.lab import Lab
from scalebench.launch.lab.quota import remove_abandoned_groups
from scalebench.launch.placement import Placement, ThisMachine
from scalebench.launch.zygote_client import ZygoteClient
from scalebench.monitor.node import NodeWatch
from scalebench.paths import LaunchPaths
from scalebench.planted import Planted
from scalebench.probe import ClockCheck, ProbeRecord, Sweep
from scalebench.records import Failure, RankRecord
from scalebench.spec import Cell, Device, Job
from scalebench.store import read_model, write_model
from scalebench.virtual_hosts import VirtualHosts

R = TypeVar("R", RankRecord, ProbeRecord)

SCRATCH_PREFIX = "scalebench-"
SCRATCH_LOCK = ".lock"
ASK_LIMIT_S = 300.0
GRACE_S = 1.0
"""Time for the other ranks to leave their own account after the first one failed."""
DUMP_S = 0.3
"""Time for a hung rank to write its stacks into its log before it is killed."""


def loopback_environment() -> dict[str, str]:
    """Return the variables that keep a single-machine job on the loopback interface."""
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    wanted = {"GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback}
    return {name: value for name, value in wanted.items() if name not in os.environ}


def remove_abandoned_scratch() -> None:
    """Remove what launchers that were killed have left: folders whose lock nobody holds."""
    for folder in Path(tempfile.gettempdir()).glob(f"{SCRATCH_PREFIX}*"):
        with suppress(OSError), (folder / SCRATCH_LOCK).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


class LocalLauncher:
    """One process per rank, a fresh FileStore per launch; on this machine as it is, or in a lab.

    Attributes:
        placement: Where ranks are put. Closed with the launcher.
    """

    def __init__(self) -> None:
        remove_abandoned_scratch()
        remove_abandoned_groups()
        self.placement: Placement = ThisMachine()
        self.scratch = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX))
        self.lock = (self.scratch / SCRATCH_LOCK).open("w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.zygote = ZygoteClient(
            self.scratch / "zygote.log", {**loopback_environment(), "KINETO_LOG_LEVEL": "5"}
        )
        self.num_launches = 0
        self.device_uuids: list[str] | None = None
        self.planted: dict[str, Any] = {}

    def __enter__(self) -> "LocalLauncher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process; remove the place that was made for them, and the scratch folder."""
        try:
            self.zygote.close()
        finally:
            self.placement.close()
            shutil.rmtree(self.scratch, ignore_errors=True)
            self.lock.close()

    def move_to(self, hosts: VirtualHosts, num_ranks: int) -> None:
        """Put ranks on virtual hosts from the next launch on.

        Args:
            hosts: What they are to be like.
            num_ranks: The largest number of ranks of a launch.

        Raises:
            EnvironmentUnfit: They cannot be made here.
        """
        self.placement.close()
        self.placement = ThisMachine()
        self.placement = Lab(hosts, num_ranks)

    def survey(self, rates: bool = False) -> dict[str, Any]:
        """Return what torch says of this machine; with ``rates``, measure its devices too."""
        answer = self._ask({"job": "survey", "rates": rates})
        self.device_uuids = [device["uuid"] for device in answer["devices"]]
        return answer

    def describe(self, target: CustomTarget, device: Device) -> dict[str, Any]:
        """Build the user's workload once and return what it is.

        Raises:
            UsageError: It cannot be used; the text says what is wrong with it.
        """
        workload = target.model_dump()
        request = {"job": "describe", "workload": workload, "batch_size": 2, "device": device}
        answer = self._ask(request)
        if "error" in answer:
            raise UsageError(answer["error"]["message"])
        return answer

    def schedule(self, name: str, ranks: int, microbatches: int, chunks: int) -> list[list[str]]:
        """Return the passes of every rank in the order that torch has for a schedule.

        Raises:
            UsageError: torch refuses; the text says why.
        """
        sizes = {"ranks": ranks, "microbatches": microbatches, "chunks": chunks}
        answer = self._ask({"job": "schedule", "name": name, **sizes})
        if "error" in answer:
            raise UsageError(answer["error"]["message"])
        return list(answer["ranks"])

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        folder = self._launch_folder()
        answer, log = folder / "answer.json", folder / "log"
        tag = [self.num_launches, 0]
        request |= {"tag": tag, "answer": os.fspath(answer), "log": os.fspath(log)}
        self.zygote.wait_until_ready()
        self.zygote.send({"start": request})
        ranks = _Ranks(self.zygote, self.num_launches, 1, time.monotonic() + ASK_LIMIT_S)
        ranks.wait()
        if not answer.exists():
            raise EnvironmentUnfit(
                f"The worker could not answer {request['job']!r}: {log_tail(log) or 'no output'}"
            )
        return dict(json.loads(answer.read_text()))

    def _launch_folder(self) -> Path:
        self.num_launches += 1
        folder = self.scratch / f"launch{self.num_launches}"
        folder.mkdir()
        return folder

    def plant(self, what: Planted | None) -> None:
        """Have ranks plant something from the next launch on, for the self-test; None: nothing."""
        self.planted = {} if what is None else {"planted": what.model_dump()}

    def launch(self, cell: Cell, logs: Path) -> Launched:
        """Run one cell to its end, or to the end of its time.

        Args:
            cell: What to run.
            logs: Folder for one log per rank; made here.
        """
        self.zygote.wait_until_ready()
        parents = [self.zygote.process.pid]
        with NodeWatch(cell.device, self.device_uuids, parents) as watch:
            launched = self._launch(cell, logs)
        return replace(launched, node=watch.track)

    def probe(self, probe: Sweep | ClockCheck, logs: Path) -> list[ProbeRecord]:
        """Run a probe; return what its ranks found, by rank.

        Args:
            probe: What to do.
            logs: As for `launch`.

        Raises:
            ProbeFailed: A rank did not come to its end.
        """
        self.zygote.wait_until_ready()
        ended = self._run("probe", probe, ProbeRecord, logs)
        if ended.failure is not None:
            raise ProbeFailed(f"rank {ended.failure.rank}: {ended.failure.message}")
        return ended.records

    def _launch(self, cell: Cell, logs: Path) -> Launched:
        ended = self._run("cell", cell, RankRecord, logs)
        first_steps = [r.first_step_ns for r in ended.records if r.first_step_ns is not None]
        launch_s = (max(first_steps) - ended.decided_ns) / 1e9 if first_steps else None
        return Launched(ended.records, ended.failure, launch_s, ended.wall_s)

    def _run(self, name: str, job: Job, kind: type[R], logs: Path) -> "_Ended[R]":
        decided_ns = time.monotonic_ns()
        paths = LaunchPaths(self._launch_folder())
        write_model(paths.job_json, job)
        logs.mkdir(parents=True, exist_ok=True)
        rank_logs = {rank: logs / f"rank{rank}.log" for rank in range(job.num_processes)}
        for rank, log in rank_logs.items():
            log.unlink(missing_ok=True)
            folder = os.fspath(paths.root)
            request = {"job": name, "rank": rank, "folder": folder, "log": os.fspath(log)}
            placed = self.placement.of(rank) if job.virtual_hosts else {}
            told = {**request, **placed, **self.planted, "tag": [self.num_launches, rank]}
            self.zygote.send({"start": told})
        deadline = time.monotonic() + job.limit_s
        ranks = _Ranks(self.zygote, self.num_launches, job.num_processes, deadline)
        in_time = ranks.wait()
        wall_s = (time.monotonic_ns() - decided_ns) / 1e9
        records = [
            read_model(path, kind)
            for path in map(paths.record, range(job.num_processes))
            if path.exists()
        ]
        shutil.rmtree(paths.root, ignore_errors=True)
        failure = first_failure(records, ranks.exits, rank_logs)
        if failure is None and not in_time and len(records) < job.num_processes:
            failure = _out_of_time(job, ranks, rank_logs)
        return _Ended(records, failure, decided_ns, wall_s)


@dataclass(frozen=True)
class _Ended(Generic[R]):
    """A launch that is over; ``decided_ns`` is when it was begun."""

    records: list[R]
    failure: Failure | None
    decided_ns: int
    wall_s: float


def _out_of_time(job: Job, ranks: "_Ranks", logs: dict[int, Path]) -> Failure:
    late = sorted(ranks.late)
    message = (
        f"still running after the limit of {job.limit_s:g} s: "
        f"rank {', '.join(map(str, late))} of {job.world_size}"
    )
    return Failure(rank=late[0], kind="limit", message=message, log_tail=log_tail(logs[late[0]]))


class _Ranks:
    """The processes of one launch: waits for them, and ends them when one fails or time is up.

    Every process bears the number of its launch: word of an earlier launch's is not taken for
    that of this one's.
    """

    def __init__(self, zygote: ZygoteClient, launch: int, num_ranks: int, deadline: float) -> None:
        self.zygote = zygote
        self.launch = launch
        self.num_ranks = num_ranks
        self.deadline = deadline
        self.pids: dict[int, int] = {}
        self.exits: list[RankExit] = []
        self.killed_by_us = False
        self.late: set[int] = set()

    def wait(self) -> bool:
        """Return when no rank is left; False: the time was over before they were done."""
        try:
            in_time = self._wait_for_end(self.deadline)
            if not in_time:
                self.late = set(range(self.num_ranks)) - {end.rank for end in self.exits}
                self._signal(signal.SIGUSR1)
                self._wait_for_end(time.monotonic() + DUMP_S, stop_at_failure=False)
            elif len(self.exits) < self.num_ranks:
                self._wait_for_end(time.monotonic() + GRACE_S, stop_at_failure=False)
        finally:
            self._end()
        return in_time

    def _wait_for_end(self, deadline: float, stop_at_failure: bool = True) -> bool:
        """Take messages until all ranks have ended, or one failed; False: time is up."""
        while len(self.exits) < self.num_ranks:
            message = self.zygote.next_message(deadline - time.monotonic())
            if message is None:
                return False
            self._note(message)
            if stop_at_failure and any(end.code for end in self.exits):
                return True
        return True

    def _note(self, message: dict[str, Any]) -> None:
        tag: list[int] = message.get("tag") or message.get("refused") or [self.launch]
        if tag[0] != self.launch:
            return
        if "started" in message:
            self.pids[message["started"]] = tag[1]
        elif "refused" in message:
            self.exits.append(RankExit(tag[1], 1, message["time_ns"], self.killed_by_us))
        elif message.get("exited") in self.pids:
            rank = self.pids[message["exited"]]
            end = RankExit(rank, message["code"], message["time_ns"], self.killed_by_us)
            self.exits.append(end)

    def _signal(self, number: int) -> None:
        self.zygote.send({"kill": list(self.pids), "signal": int(number)})

    def _end(self) -> None:
        """Kill what is left, and wait until it is gone."""
        if len(self.exits) < self.num_ranks:
            self.killed_by_us = True
            deadline = time.monotonic() + 5
            while len(self.exits) < self.num_ranks and time.monotonic() < deadline:
                self._signal(signal.SIGKILL)
                self._wait_for_end(time.monotonic() + 0.2, stop_at_failure=False)
