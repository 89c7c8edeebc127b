"""Ranks on this machine, forked from a process that has torch imported already."""

import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic

from scalebench.launch.base import (
    ASK_LIMIT_S,
    Launched,
    Launcher,
    R,
    SharingFailed,
    cannot_answer,
    fresh_logs,
    until_first_step,
)
from scalebench.launch.failures import log_tail, ranks_lost, what_went_wrong, why_not_shared
from scalebench.launch.lab import Lab
from scalebench.launch.lab.lab import remove_abandoned_groups
from scalebench.launch.processes import check_loopback, loopback_environment
from scalebench.launch.ranks import Ranks, ZygoteClient
from scalebench.records.files import read_model, write_model
from scalebench.records.measured.rank import RankRecord
from scalebench.records.paths import LaunchPaths
from scalebench.spec import Cell, Job, SharedLaunch
from scalebench.spec.world import VirtualHosts


class LocalLauncher(Launcher):
    """One process per rank, a fresh FileStore per launch; on this machine as it is, or in a lab.

    Args:
        early: Import torch at once, for what is certain to follow; else when it is needed.

    Attributes:
        placement: The virtual hosts that ranks are put on, closed with the launcher; None: there
            are none.
    """

    shares = True

    def __init__(self, early: bool = True) -> None:
        super().__init__()
        remove_abandoned_groups()
        self.placement: Lab | None = None
        if early:
            _ = self.zygote  # imports torch meanwhile

    @cached_property
    def zygote(self) -> ZygoteClient:
        """The process that has torch imported, from the first time that it is asked for."""
        kept_here = {**loopback_environment(), "KINETO_LOG_LEVEL": "5"}
        return ZygoteClient(self.scratch / "zygote.log", kept_here)

    def __enter__(self) -> "LocalLauncher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process; remove the place that was made for them, and the scratch folder."""
        try:
            if "zygote" in vars(self):
                self.zygote.close()
        finally:
            self._leave_hosts()
            super().close()

    def move_to(self, hosts: VirtualHosts, num_ranks: int) -> None:
        """Put ranks on virtual hosts from the next launch on; see `Launcher.move_to`."""
        self._leave_hosts()
        self.placement = Lab(hosts, num_ranks)

    def _leave_hosts(self) -> None:
        hosts, self.placement = self.placement, None
        if hosts is not None:
            hosts.close()

    def parents(self) -> list[int]:
        """Return the zygote, when it has imported torch."""
        self.zygote.wait_until_ready()
        return [self.zygote.process.pid]

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Have a process of the worker answer a question."""
        folder = self._launch_folder()
        answer, log = folder / "answer.json", folder / "log"
        tag = [self.num_launches, 0]
        request |= {"tag": tag, "answer": os.fspath(answer), "log": os.fspath(log)}
        self.zygote.wait_until_ready()
        self.zygote.send({"start": request})
        ranks = Ranks(self.zygote, self.num_launches, 1, time.monotonic() + ASK_LIMIT_S)
        ranks.wait()
        if not answer.exists():
            raise cannot_answer(request, log_tail(log))
        return dict(json.loads(answer.read_text()))

    def _launch_folder(self) -> Path:
        folder = self.scratch / f"launch{self._next_launch()}"
        folder.mkdir()
        return folder

    def run_job(self, name: str, job: Job, kind: type[R], logs: Path) -> Launched[R]:
        """Run a job to its end, or to the end of its time."""
        rank_logs = fresh_logs(logs, job.num_processes)
        done = self._carry_out(name, job, [job], list(rank_logs.items()), kind)
        ranks, records = done.ranks, list(done.records.values())
        failure = what_went_wrong(job, ranks, done.in_time, records, rank_logs, done.positions)
        lost = ranks_lost(ranks, records, rank_logs) if failure is None else []
        gone = {one.rank for one in lost}
        left = [record for record in records if record.rank not in gone]
        launch_s = until_first_step(left, done.decided_ns)
        told_ns = ranks.noticed_ns, done.stopped_ns
        return Launched(left, failure, launch_s, done.wall_s, None, lost, *told_ns)

    def run_shared(self, shared: SharedLaunch, logs: Sequence[Path]) -> list[Launched[RankRecord]]:
        """Run cells that take turns to the end of all of them."""
        log_of = [
            fresh_logs(folder, cell.num_processes)
            for cell, folder in zip(shared.cells, logs, strict=True)
        ]
        places = shared.places()
        seats = [(rank, log_of[place][rank]) for place, rank in places]
        done = self._carry_out("shared", shared, shared.cells, seats, RankRecord)
        records: list[list[RankRecord]] = [[] for _ in shared.cells]
        for process, record in done.records.items():
            records[places[process][0]].append(record)
        reason = why_not_shared(shared, done.ranks.exits, records, done.in_time)
        if reason is not None:
            raise SharingFailed(reason)
        return [Launched(of_cell, None, None, done.wall_s) for of_cell in records]

    def _carry_out(
        self,
        name: str,
        job: Job,
        parts: Sequence[Job],
        seats: Sequence[tuple[int, Path]],
        kind: type[R],
    ) -> "_Done[R]":
        """Have the zygote fork a process for each seat, and wait for their end.

        Ranks of all ``parts`` have to find one another. ``seats``: of each process, its rank and
        its log.

        Raises:
            EnvironmentUnfit: Ranks cannot connect here; virtual hosts have own interfaces.
        """
        if any(part.num_processes > 1 and not part.virtual_hosts for part in parts):
            check_loopback()
        decided_ns = time.monotonic_ns()
        paths = LaunchPaths(self._launch_folder())
        write_model(paths.job_json, job)
        for process, (rank, log) in enumerate(seats):
            where = {"rank": rank, "folder": os.fspath(paths.root), "log": os.fspath(log)}
            placed = self.placement.of(rank) if self.placement and job.virtual_hosts else {}
            tag = {"process": process, "tag": [self.num_launches, process]}
            self.zygote.send({"start": {"job": name, **where, **placed, **self.fault, **tag}})
        deadline = time.monotonic() + job.limit_s
        ranks = Ranks(self.zygote, self.num_launches, len(seats), deadline)
        if isinstance(job, Cell) and job.purpose == "measure":
            ranks.dispensable = job.strategy.dispensable(job.world_size)
        in_time = ranks.wait()
        stopped_ns = time.monotonic_ns()
        found = {process: paths.record(process) for process in range(len(seats))}
        told = {process: paths.position(process) for process in ranks.late}
        records = {i: read_model(path, kind) for i, path in found.items() if path.exists()}
        positions = {i: path.read_text() for i, path in told.items() if path.exists()}
        shutil.rmtree(paths.root, ignore_errors=True)
        return _Done(ranks, in_time, records, positions, decided_ns, stopped_ns)


@dataclass(frozen=True)
class _Done(Generic[R]):
    """Processes that have ended, and what they left, by their number."""

    ranks: Ranks
    in_time: bool
    records: dict[int, R]
    positions: dict[int, str]
    decided_ns: int
    stopped_ns: int

    @property
    def wall_s(self) -> float:
        """From the decision to the end of the last one, seconds."""
        return (self.stopped_ns - self.decided_ns) / 1e9
