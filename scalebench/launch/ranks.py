"""The launcher's end of the zygote that forks the ranks, and the processes of one launch."""

import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from scalebench.errors import EnvironmentUnfit
from scalebench.launch.processes import end_process, interpreter
from scalebench.machine import OutOfMemoryWatch
from scalebench.records.files import Channel

START_LIMIT_S = 300.0
WORKER = "scalebench.worker.process.zygote"
MARK = "_SCALEBENCH_RANKS_OF"
"""Variable that tells whose processes these are, those too that have left their parents."""
GRACE_S = 1.0
"""Time for the other ranks to leave their own account after the first one failed."""
DUMP_S = 1.0
"""Time for hung ranks to say where they are, and to write their stacks into their logs, before they
are killed. One that takes longer would be called the one that the others wait for."""
TERM_GRACE_S = 2.0
"""From SIGTERM to SIGKILL."""
END_LIMIT_S = 5.0


class ZygoteClient:
    """Starts the zygote at once and waits for it only when it is first needed.

    ``environment`` is added to the zygote's, and so to every rank's. The first arguments of
    ``worker`` are the socket and this process's number; ``arguments`` follow.
    """

    def __init__(
        self,
        log: Path,
        environment: dict[str, str],
        worker: str = WORKER,
        arguments: Sequence[str] = (),
    ) -> None:
        self.log = log
        self.ready = False
        self.memory = OutOfMemoryWatch()
        self.mark = f"{os.getpid()}.{time.monotonic_ns()}"
        self.messages: deque[dict[str, Any]] = deque()
        own, theirs = socket.socketpair()
        self.channel = Channel(own)
        in_main_thread = threading.current_thread() is threading.main_thread()
        with theirs, log.open("ab") as output:
            self.process = subprocess.Popen(
                [
                    *(*interpreter(), "-m", worker, str(theirs.fileno())),
                    str(os.getpid() if in_main_thread else 0),
                    *arguments,
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment, MARK: self.mark},
                start_new_session=True,  # Ctrl-C is for the launcher; it decides about the ranks
            )
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.channel, selectors.EVENT_READ)

    def wait_until_ready(self) -> None:
        """Return when torch is imported.

        Raises:
            EnvironmentUnfit: It cannot be imported, or the worker says what else is wrong.
        """
        deadline = time.monotonic() + START_LIMIT_S
        while not self.ready:
            message = self.next_message(deadline - time.monotonic())
            if message is None:
                raise EnvironmentUnfit(
                    f"Importing torch took more than {START_LIMIT_S:.0f} s and was stopped."
                )
            if "error" in message:
                raise EnvironmentUnfit(message["error"])
            self.ready = "ready" in message

    def send(self, message: dict[str, Any]) -> None:
        """Send one request.

        Raises:
            EnvironmentUnfit: The zygote is gone.
        """
        try:
            self.channel.send(message)
        except OSError:
            raise self._gone() from None

    def signal(self, launch: int, number: int) -> None:
        """Send a signal to every process of a launch that has not ended."""
        self.send({"kill": launch, "signal": int(number)})

    def next_message(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next message, or None when the time is over.

        Raises:
            EnvironmentUnfit: The zygote is gone.
        """
        deadline = time.monotonic() + max(0.0, timeout_s)
        while not self.messages:
            if not self.selector.select(max(0.0, deadline - time.monotonic())):
                return None
            try:
                arrived = self.channel.receive()
            except OSError:
                arrived = None
            if arrived is None:
                raise self._gone()
            self.messages.extend(arrived)
        return self.messages.popleft()

    def _gone(self) -> EnvironmentUnfit:
        self.process.wait()
        self._end_survivors()
        try:
            last = self.log.read_text(errors="replace").strip().splitlines()[-1:]
        except OSError:
            last = []
        code, out_of_memory = self.process.returncode, self.memory.killed()
        if code == -signal.SIGKILL:
            because = out_of_memory or (
                "scalebench did not do that. Look for a person, a batch system or a service "
                "manager that did"
            )
            return EnvironmentUnfit(
                f"The process that starts the ranks was killed by SIGKILL: {because}. Results so "
                "far are kept: `scalebench run --resume` goes on."
            )
        because = f": {last[0]}" if last else f" (exit code {code})"
        return EnvironmentUnfit(
            f"The worker process could not run{because}. "
            f"Check that `{sys.executable} -c 'import torch'` works in this folder."
        )

    def _end_survivors(self) -> None:
        """End what ranks have started, when the process that would have done so was killed."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark:
                    process.kill()

    def close(self) -> None:
        """Hang up; the zygote kills what is left and ends."""
        self.selector.close()
        self.channel.close()
        if not self.ready:
            self.process.kill()  # still importing torch: it has no children, and no process waits
        if not end_process(self.process):
            self._end_survivors()


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
