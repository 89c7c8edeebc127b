"""Processes of a world that have met: asked, told what to start, and waited for."""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalebench.errors import EnvironmentUnfit
from scalebench.launch.external.nodes import Registration, watched_places
from scalebench.launch.external.relay_client import RelayClient
from scalebench.launch.forking import ASK_LIMIT_S, cannot_answer, fresh_logs
from scalebench.launch.ranks import Ended, R, Ranks, what_went_wrong
from scalebench.records.rank import Block, RankRecord
from scalebench.records.telemetry import NodeTrack
from scalebench.spec import Job
from scalebench.spec.world import World

CONNECT_LIMIT_S = 330.0
ANSWER_LIMIT_S = 30.0
DISCONNECT_LIMIT_S = 1.0


class WorkerGroup:
    """The processes that one relay speaks to.

    Args:
        relay: The way to them.
        launcher: Who has started them.
        everyone: Their numbers.

    Attributes:
        registrations: Process → what it told of itself; empty until all have met.
    """

    def __init__(self, relay: RelayClient, launcher: str, everyone: Sequence[int]) -> None:
        self.relay = relay
        self.launcher = launcher
        self.everyone = everyone
        self.registrations: dict[int, Registration] = {}

    def connect(self) -> None:
        """Wait until every process is there.

        Raises:
            EnvironmentUnfit: One does not come.
        """
        if self.registrations:
            return
        self.relay.wait_until_ready()
        told = self.relay.collect("hello", self.everyone, CONNECT_LIMIT_S)
        missing = sorted(set(self.everyone) - told.keys())
        if missing:
            raise EnvironmentUnfit(
                f"Of {len(self.everyone)} ranks that {self.launcher} should have started, "
                f"{', '.join(map(str, missing))} did not connect within {CONNECT_LIMIT_S:.0f} s. "
                "Check their output, and whether they can reach "
                f"{self.relay.rendezvous.host}:{self.relay.rendezvous.port}."
            )
        self.registrations = {
            rank: Registration.model_validate(hello) for rank, hello in told.items()
        }

    def disconnect(self) -> None:
        """Tell every process that this was all."""
        with suppress(EnvironmentUnfit):
            self.relay.wait_until_ready()
            self.relay.write(self.everyone, {"end": True})
            limit_s = DISCONNECT_LIMIT_S if self.registrations else ASK_LIMIT_S
            self.relay.collect("bye", self.everyone, limit_s)

    def ask(
        self, launch: int, processes: Sequence[int], request: dict[str, Any]
    ) -> dict[int, dict[str, Any]]:
        """Have processes answer a question; return the answers by process.

        Args:
            launch: A number that no other launch has.
            processes: Who is asked.
            request: The question.

        Raises:
            EnvironmentUnfit: One could not answer.
        """
        self.connect()
        asked = self.start(launch, processes, request, ASK_LIMIT_S, {})
        asked.wait()
        answers = {}
        for index, process in enumerate(processes):
            message = asked.messages.get(index, {})
            if "answer" not in message:
                raise cannot_answer(request, str(message.get("log", "")).strip()[-2000:])
            answers[process] = dict(json.loads(message["answer"]))
        return answers

    def start(
        self,
        launch: int,
        processes: Sequence[int],
        request: dict[str, Any],
        limit_s: float,
        places: Mapping[int, Mapping[str, Any]],
    ) -> Ranks:
        """Have processes start a rank each, numbered from 0 in their order.

        Args:
            launch: A number that no other launch has.
            processes: Who starts one.
            request: What they are told, all alike.
            limit_s: How long the ranks have.
            places: Process → what it alone is told.

        Raises:
            EnvironmentUnfit: One of them is no longer there.
        """
        self.relay.members = processes
        self._prove_presence(launch, processes)
        for rank, process in enumerate(processes):
            seat = {"rank": rank, "tag": [launch, rank], **places.get(process, {})}
            self.relay.write([process], {"start": {**request, **seat}})
        return Ranks(self.relay, launch, len(processes), time.monotonic() + limit_s)

    def _prove_presence(self, launch: int, processes: Sequence[int]) -> None:
        """Have processes answer, before any rank of theirs waits for the others."""
        self.relay.write(processes, {"ping": launch})
        answered = self.relay.collect("pong", processes, ANSWER_LIMIT_S)
        gone = sorted(set(processes) - answered.keys())
        if gone:
            names = ", ".join(f"{rank} ({self.registrations[rank].host})" for rank in gone)
            raise EnvironmentUnfit(
                f"Of the ranks that {self.launcher} started, {names} no longer answer. Results so "
                "far are kept: start the job again with --resume."
            )

    def run_job(
        self,
        launch: int,
        processes: Sequence[int],
        request: dict[str, Any],
        job: Job,
        kind: type[R],
        logs: Path,
        world: World,
        devices: Mapping[tuple[str, int], str],
    ) -> Ended[R]:
        """Run a job on processes, to its end or to the end of its time.

        Args:
            launch: A number that no other launch has.
            processes: In the order of the ranks.
            request: Everything but the job itself.
            job: What to run.
            kind: What its ranks leave.
            logs: Folder for one log per rank; made here.
            world: Where the processes are.
            devices: See `rank_devices`.
        """
        decided_ns = time.monotonic_ns()
        rank_logs = fresh_logs(logs, job.world_size)
        told = {**request, "description": job.model_dump_json()}
        on_gpus = kind is RankRecord and job.device == "cuda"
        known = devices if on_gpus else {}
        places = watched_places(world, processes, self.registrations, known)
        ranks = self.start(launch, processes, told, job.limit_s, places)
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
        positions = {
            rank: message["position"]
            for rank, message in ranks.messages.items()
            if "position" in message
        }
        failure = what_went_wrong(job, ranks, in_time, records, rank_logs, positions)
        watched = [
            self._shifted(NodeTrack.model_validate_json(message["watched"]), processes[rank])
            for rank, message in sorted(ranks.messages.items())
            if message.get("watched")
        ]
        return Ended(records, failure, decided_ns, wall_s, watched=watched if on_gpus else None)

    def _shifted(self, track: NodeTrack, process: int) -> NodeTrack:
        """Return a track of another machine, its times on the clock here."""
        shift = self.relay.shifts_ns[process]
        for columns in (c for device in track.devices for c in (device.states, device.traffic)):
            columns.time_ns[:] = [time_ns + shift for time_ns in columns.time_ns]
        return track

    def _on_this_clock(self, record: R, process: int) -> R:
        """Return a record of another machine, its steps and its error on the clock here."""
        shift = self.relay.shifts_ns[process]
        changes: dict[str, Any] = {}
        if record.error is not None:
            error_ns = record.error.time_ns + shift
            changes["error"] = record.error.model_copy(update={"time_ns": error_ns})
        if isinstance(record, RankRecord) and record.first_step_ns is not None:
            changes["first_step_ns"] = record.first_step_ns + shift
        if isinstance(record, RankRecord):
            changes["blocks"] = [_later(block, shift) for block in record.blocks]
        return record.model_copy(update=changes)


def _later(block: Block, shift_ns: int) -> Block:
    """Return a block with its times on a clock that shows so much more."""
    times = {"start_ns": block.start_ns, "end_ns": block.end_ns}
    known = {name: ns + shift_ns for name, ns in times.items() if ns is not None}
    return block.model_copy(update=known)
