"""The launcher's end of the zygote: the process that has torch imported and forks the ranks."""

import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from scalebench.errors import EnvironmentUnfit
from scalebench.launch.processes import end_process, interpreter
from scalebench.records.storage.channel import Channel
from scalebench.resources import OutOfMemoryWatch

START_LIMIT_S = 300.0
WORKER = "scalebench.worker.process.zygote"
MARK = "_SCALEBENCH_RANKS_OF"
"""Variable that tells whose processes these are, those too that have left their parents."""


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
