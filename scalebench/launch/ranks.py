"""The processes of one launch: waits for them, and ends them."""

import signal
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from scalebench.launch.zygote_client import ZygoteClient

GRACE_S = 1.0
"""Time for the other ranks to leave their own account after the first one failed."""
DUMP_S = 1.0
"""Time for hung ranks to say where they are, and to write their stacks into their logs, before they
are killed. One that takes longer would be called the one that the others wait for."""
TERM_GRACE_S = 2.0
"""From SIGTERM to SIGKILL."""
END_LIMIT_S = 5.0


@dataclass(frozen=True)
class RankExit:
    """How a rank's process ended.

    Attributes:
        code: Exit code; negative: minus the signal that killed it.
        time_ns: When, on the machine's monotonic clock.
        killed_by_us: The launcher had asked for it by then.
    """

    rank: int
    code: int
    time_ns: int
    killed_by_us: bool


@dataclass
class Ranks:
    """The processes of one launch.

    Every process has the number of its launch: a message of an earlier launch's is not taken for
    that of this one's.

    Attributes:
        processes: The way to what holds them: one zygote here, or many elsewhere.
        launch: Number of the launch.
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

    processes: ZygoteClient
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
