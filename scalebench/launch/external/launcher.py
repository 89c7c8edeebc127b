"""Launches in a world that somebody else has started: each on the first of its processes."""

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalebench.errors import EnvironmentUnfit
from scalebench.launch.external.hub_client import HubClient
from scalebench.launch.external.nodes import Hello, world_of
from scalebench.launch.forking import ASK_LIMIT_S, ForkingLauncher, cannot_answer, fresh_logs
from scalebench.launch.ranks import Ended, R, Ranks, what_went_wrong
from scalebench.records import RankRecord
from scalebench.spec import Job
from scalebench.virtual_hosts import VirtualHosts
from scalebench.world import Member, World

MEETING_LIMIT_S = 330.0
ANSWER_LIMIT_S = 30.0
PARTING_LIMIT_S = 1.0


class ExternalLauncher(ForkingLauncher):
    """Tells the processes of a world what to start; their results come over the world's store.

    Each process forks a fresh rank for every launch that it takes part in, so that a rank that
    dies costs its cell and not the world. No file is shared between machines.

    Args:
        member: This process's place in the world; it has to be the first.
    """

    def __init__(self, member: Member) -> None:
        super().__init__()
        self.member = member
        self.hub = HubClient(member.meeting, member, self.scratch)
        self.hellos: dict[int, Hello] = {}

    def close(self) -> None:
        """Tell every process of the world that this was all."""
        try:
            with suppress(EnvironmentUnfit):
                self.hub.wait_until_ready()
                everyone = range(self.member.world_size)
                self.hub.write(everyone, {"end": True})
                self.hub.collect("bye", everyone, PARTING_LIMIT_S if self.hellos else ASK_LIMIT_S)
        finally:
            self.hub.close()
            super().close()

    def move_to(self, hosts: VirtualHosts, num_ranks: int) -> None:
        """Refuse: ranks are where they are."""
        raise EnvironmentUnfit(
            f"{self.member.launcher} has placed the ranks; they cannot be put on virtual hosts."
        )

    def survey(self, rates: bool = False) -> dict[str, Any]:
        """Wait for the whole world; return what torch says of the first machine.

        Raises:
            EnvironmentUnfit: A process does not come.
        """
        self._meet()
        everyone = range(self.member.world_size)
        answers = self._ask(everyone, {"job": "survey", "rates": rates})
        self.world = world_of(self.member.launcher, self.hellos, answers)
        self.device_uuids = [device["uuid"] for device in answers[0]["devices"]]
        return answers[0]

    def _meet(self) -> None:
        if self.hellos:
            return
        self.hub.wait_until_ready()
        everyone = range(self.member.world_size)
        told = self.hub.collect("hello", everyone, MEETING_LIMIT_S)
        missing = sorted(set(everyone) - told.keys())
        if missing:
            raise EnvironmentUnfit(
                f"Of {len(everyone)} ranks that {self.member.launcher} was to start, "
                f"{', '.join(map(str, missing))} did not come within {MEETING_LIMIT_S:.0f} s. "
                "Look at what they printed, and whether they reach "
                f"{self.member.meeting.host}:{self.member.meeting.port}."
            )
        self.hellos = {rank: Hello.model_validate(hello) for rank, hello in told.items()}

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Have the first process answer a question."""
        return self._ask([0], request)[0]

    def _ask(self, ranks: Sequence[int], request: dict[str, Any]) -> dict[int, dict[str, Any]]:
        """Have processes answer a question; return the answers by process."""
        self._meet()
        asked = self._start(ranks, request, ASK_LIMIT_S)
        asked.wait()
        answers = {}
        for index, rank in enumerate(ranks):
            message = asked.messages.get(index, {})
            if "answer" not in message:
                raise cannot_answer(request, str(message.get("log", "")).strip()[-2000:])
            answers[rank] = dict(json.loads(message["answer"]))
        return answers

    def parents(self) -> list[int]:
        """Return the world's processes on the first machine."""
        self._meet()
        here = self.hellos[0].host
        return [hello.pid for hello in self.hellos.values() if hello.host == here]

    def _start(self, processes: Sequence[int], request: dict[str, Any], limit_s: float) -> Ranks:
        """Have processes start a rank each, numbered from 0 in their order."""
        self.num_launches += 1
        self.hub.members = processes
        self._answer_first(processes)
        places = self.world.places() if self.world is not None else {}
        for rank, process in enumerate(processes):
            seat = {"rank": rank, "tag": [self.num_launches, rank], **places.get(process, {})}
            self.hub.write([process], {"start": {**request, **seat}})
        deadline = time.monotonic() + limit_s
        return Ranks(self.hub, self.num_launches, len(processes), deadline)

    def _answer_first(self, processes: Sequence[int]) -> None:
        """Prove that processes are there, before any of them waits for the others."""
        self.hub.write(processes, {"ping": self.num_launches})
        answered = self.hub.collect("pong", processes, ANSWER_LIMIT_S)
        gone = sorted(set(processes) - answered.keys())
        if gone:
            names = ", ".join(f"{rank} ({self.hellos[rank].host})" for rank in gone)
            raise EnvironmentUnfit(
                f"Of the ranks that {self.member.launcher} started, {names} no longer answer. "
                "What was done is kept: start the world again, with --resume."
            )

    def run_job(self, name: str, job: Job, kind: type[R], logs: Path) -> Ended[R]:
        """Run a job on the first processes of the world, node by node."""
        decided_ns = time.monotonic_ns()
        world: World | None = self.world
        assert world is not None, "the world was surveyed before anything is launched"
        rank_logs = fresh_logs(logs, job.world_size)
        processes = world.order[: job.world_size]
        request = {"job": name, "description": job.model_dump_json(), **self.planted}
        ranks = self._start(processes, request, job.limit_s)
        in_time = ranks.wait()
        wall_s = (time.monotonic_ns() - decided_ns) / 1e9
        for rank, message in ranks.messages.items():
            if message.get("log"):
                rank_logs[rank].write_text(message["log"])
        records = [
            self._on_this_clock(kind.model_validate_json(message["record"]), processes[rank])
            for rank, message in sorted(ranks.messages.items())
            if "record" in message
        ]
        failure = what_went_wrong(job, ranks, in_time, records, rank_logs)
        return Ended(records, failure, decided_ns, wall_s)

    def _on_this_clock(self, record: R, process: int) -> R:
        """Return a record of another machine, its first step and its error on the clock here."""
        shift = self.hub.shifts_ns[process]
        changes: dict[str, Any] = {}
        if record.error is not None:
            error_ns = record.error.time_ns + shift
            changes["error"] = record.error.model_copy(update={"time_ns": error_ns})
        if isinstance(record, RankRecord) and record.first_step_ns is not None:
            changes["first_step_ns"] = record.first_step_ns + shift
        return record.model_copy(update=changes)
