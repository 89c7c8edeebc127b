"""The processes of one launch: waits for them, ends them, and works out what became of it."""

import re
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from scalebench.launch.first_failure import RankExit, first_failure, log_tail, where_it_hangs
from scalebench.records.probes import ProbeRecord
from scalebench.records.rank import RankRecord
from scalebench.records.run import Failure
from scalebench.records.telemetry import NodeTrack
from scalebench.spec import Job

R = TypeVar("R", RankRecord, ProbeRecord)

GRACE_S = 1.0
"""Time for the other ranks to leave their own account after the first one failed."""
DUMP_S = 1.0
"""Time for hung ranks to say where they are, and to write their stacks into their logs, before they
are killed. One that takes longer would be called the one that the others wait for."""
TERM_GRACE_S = 2.0
"""From SIGTERM to SIGKILL."""
END_LIMIT_S = 5.0
MOST_PLACES = 4

_KILLED = re.compile(r"SIGKILL|signal: Killed|exited unexpectedly")
"""In the message of a failure: a process was killed, or torch's DataLoader lost a worker."""


class RankProcesses(Protocol):
    """What holds the processes of the launches: one zygote here, or many elsewhere."""

    def next_message(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next word of a process, or None when the time is over."""
        ...

    def signal(self, launch: int, number: int) -> None:
        """Send a signal to every process of a launch that has not ended."""
        ...


@dataclass(frozen=True)
class Ended(Generic[R]):
    """A launch that is over.

    Attributes:
        records: What its ranks left; those that were lost leave none.
        failure: The first thing that went wrong.
        decided_ns: When it was begun.
        wall_s: How long it took.
        lost: Ranks without which the others came to their end, and why they are gone.
        noticed_ns: When the launcher heard of the first rank that failed; None: none did, or this
            launcher does not tell.
        stopped_ns: When no rank was left; None: this launcher does not tell.
        watched: What the processes that forked the ranks saw of their GPUs; None: they did not
            watch any.
    """

    records: list[R]
    failure: Failure | None
    decided_ns: int
    wall_s: float
    lost: list[Failure] = field(default_factory=list)
    noticed_ns: int | None = None
    stopped_ns: int | None = None
    watched: Sequence[NodeTrack] | None = None


@dataclass
class Ranks:
    """The processes of one launch.

    Every process has the number of its launch: a message of an earlier launch's is not taken for
    that of this one's.

    Attributes:
        processes: What holds them.
        launch: Number of the launch.
        num_ranks: How many there are.
        deadline: When their time is over, on the monotonic clock.
        exits: How they ended, in the order in which it became known.
        messages: Rank → the message with which its end was told.
        late: Those that were still running when the time was over.
        dispensable: Those without which the others go on.
        noticed_ns: When the first failure became known.
        ending_ns: When those that were left were told to end; what they say later follows from it.
        stopped: Rank → its process that SIGSTOP or a debugger holds.
        out_of_memory: What the kernel's out-of-memory killer did meanwhile; None: nothing.
    """

    processes: RankProcesses
    launch: int
    num_ranks: int
    deadline: float
    exits: list[RankExit] = field(default_factory=list)
    messages: dict[int, dict[str, Any]] = field(default_factory=dict)
    killed_by_us: bool = False
    late: set[int] = field(default_factory=set)
    dispensable: Collection[int] = ()
    noticed_ns: int | None = None
    ending_ns: int | None = None
    stopped: dict[int, int] = field(default_factory=dict)
    out_of_memory: str | None = None

    def wait(self) -> bool:
        """Return when no rank is left; False: the time was over before they were done."""
        try:
            in_time = self._wait_for_end(self.deadline)
            if not in_time:
                self.late = self.silent
                self.processes.signal(self.launch, signal.SIGUSR1)
                self._wait_for_end(time.monotonic() + DUMP_S, stop_at_failure=False)
            elif len(self.exits) < self.num_ranks:
                self._wait_for_end(time.monotonic() + GRACE_S, stop_at_failure=False)
        finally:
            self._end()
        return in_time

    @property
    def silent(self) -> set[int]:
        """Ranks of whose end nothing is known."""
        return set(range(self.num_ranks)) - {end.rank for end in self.exits}

    @property
    def essential_exits(self) -> list[RankExit]:
        """How those ranks ended without which the others do not go on."""
        return [end for end in self.exits if end.rank not in self.dispensable]

    def _wait_for_end(self, deadline: float, stop_at_failure: bool = True) -> bool:
        """Take messages until all ranks have ended, or one failed; False: time is up."""
        while len(self.exits) < self.num_ranks:
            message = self.processes.next_message(deadline - time.monotonic())
            if message is None:
                return False
            self._note(message)
            if stop_at_failure and any(end.code for end in self.essential_exits):
                return True
        return True

    def _note(self, message: dict[str, Any]) -> None:
        kinds = (message.get(kind) for kind in ("exited", "refused", "stopped"))
        tag: list[int] = next(filter(None, kinds), [])
        if not tag or tag[0] != self.launch:
            return
        if "stopped" in message:
            self.stopped[tag[1]] = message["pid"]
            return
        self.out_of_memory = self.out_of_memory or message.get("out_of_memory")
        code = message.get("code", 1)
        self.exits.append(RankExit(tag[1], code, message["time_ns"], self.killed_by_us))
        self.messages[tag[1]] = message
        if code and self.noticed_ns is None:
            self.noticed_ns = time.monotonic_ns()

    def _end(self) -> None:
        """End what is left, SIGTERM first, and wait until it is gone."""
        if len(self.exits) < self.num_ranks:
            self.killed_by_us = True
            self.ending_ns = time.monotonic_ns()
            self.processes.signal(self.launch, signal.SIGTERM)
            self._wait_for_end(time.monotonic() + TERM_GRACE_S, stop_at_failure=False)
            deadline = time.monotonic() + END_LIMIT_S
            while len(self.exits) < self.num_ranks and time.monotonic() < deadline:
                self.processes.signal(self.launch, signal.SIGKILL)
                self._wait_for_end(time.monotonic() + 0.2, stop_at_failure=False)


def what_went_wrong(
    job: Job,
    ranks: Ranks,
    in_time: bool,
    records: Sequence[RankRecord | ProbeRecord],
    logs: Mapping[int, Path],
    positions: Mapping[int, str],
) -> Failure | None:
    """Return the first failure of a launch that is over, or None: it succeeded.

    Args:
        job: What was launched.
        ranks: Its processes, which have ended.
        in_time: Whether they did so before their time was over.
        records: What they left.
        logs: Rank → its log.
        positions: Rank → the collectives that it had called when its time was over, as it told.
    """
    records = [record for record in records if not _came_of_the_end(record, ranks)]
    essential = [record for record in records if record.rank not in ranks.dispensable]
    failure = first_failure(essential, ranks.essential_exits, dict(logs))
    if failure is not None and failure.kind == "peer":  # follows from what a lost rank did
        failure = first_failure(records, ranks.exits, dict(logs))
    if failure is None and not in_time and len(records) < job.num_processes:
        called = {rank: int(text) for rank, text in positions.items() if text.isdigit()}
        failure = _out_of_time(job, sorted(ranks.late), logs, called)
    return None if failure is None else _explained(failure, ranks)


def ranks_lost(
    ranks: Ranks,
    records: Sequence[RankRecord | ProbeRecord],
    logs: Mapping[int, Path],
) -> list[Failure]:
    """Return what became of the ranks that failed in a launch that went on without them."""
    found = (
        first_failure(
            [record for record in records if record.rank == rank],
            [end for end in ranks.exits if end.rank == rank],
            dict(logs),
        )
        for rank in sorted(ranks.dispensable)
    )
    return [_explained(failure, ranks) for failure in found if failure is not None]


def _came_of_the_end(record: RankRecord | ProbeRecord, ranks: Ranks) -> bool:
    """Tell whether a rank's error is only what it made of being told to end."""
    told_ns = ranks.ending_ns
    return record.error is not None and told_ns is not None and record.error.time_ns > told_ns


def _explained(failure: Failure, ranks: Ranks) -> Failure:
    """Return a failure with what caused it, where the machine knows more than the ranks do."""
    if ranks.stopped and failure.kind in ("peer", "limit"):
        first = min(ranks.stopped)
        names = (
            f"rank {rank} was stopped (process {pid}: by SIGSTOP or a debugger)"
            for rank, pid in sorted(ranks.stopped.items())
        )
        message = "; ".join([failure.message, *names])
        return failure.model_copy(update={"rank": first, "message": message})
    if ranks.out_of_memory is None or not _KILLED.search(failure.message):
        return failure
    message = f"{failure.message}: {ranks.out_of_memory}"
    return failure.model_copy(update={"kind": "oom", "message": message})


def _out_of_time(
    job: Job, late: Sequence[int], logs: Mapping[int, Path], called: Mapping[int, int]
) -> Failure:
    """Return the failure of ranks that hang, the one that the others wait for first."""
    message = (
        f"still running after the time limit of {job.limit_s:g} s: rank "
        f"{', '.join(map(str, late))} of {job.world_size}"
    )
    missing = who_is_missing(late, called)
    if missing:
        furthest = max(called.values())
        names = ", ".join(map(str, missing))
        message += f"; rank {names} never reached collective {furthest}, where the others wait"
    message += _where(late, logs)
    first = (missing or late)[0]
    return Failure(rank=first, kind="limit", message=message, log_tail=log_tail(logs[first]))


def _where(late: Sequence[int], logs: Mapping[int, Path]) -> str:
    """Say where ranks hang, by the stacks that they have written; those in one place together."""
    places: dict[str, list[str]] = {}
    for rank in late:
        place = where_it_hangs(logs[rank])
        if place is not None:
            places.setdefault(place, []).append(str(rank))
    told = [f"; rank {', '.join(ranks)} at {place}" for place, ranks in places.items()]
    return "".join(told[:MOST_PLACES])


def who_is_missing(late: Sequence[int], called: Mapping[int, int]) -> list[int]:
    """Return the ranks that others wait for; none: not known.

    Args:
        late: The ranks that were still running.
        called: Rank → collectives that it has called. One that does not say is held up where not
            even its other threads run, and has not called the next one.
    """
    if not called:
        return []
    furthest = max(called.values())
    behind = [rank for rank in late if called.get(rank, -1) < furthest]
    return behind if len(behind) < len(late) else []
