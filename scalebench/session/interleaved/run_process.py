"""A process that is ``scalebench run`` of one version, asked for one round after the other.

The connection over which one process has another one measure a round, and then the next.

Each message is a line of JSON. ``{"separate": reason}`` comes when a round is over, with the reason
why the run can make no further one, or null. ``{"only": [row, …]}`` asks for a round, of all rows
where the list is empty. Where the connection ends, no further round is wanted.
"""

import json
import os
import socket
import subprocess
from collections.abc import Collection, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from scalebench.errors import EnvironmentUnfit, ExitCode, UsageError

ROUNDS_ON = "SCALEBENCH_ROUNDS_ON"
"""Environment variable with the descriptor of the measuring end. A run that does not know it, of an
earlier version, makes its one round and exits."""

NOT_TOLD = "its scalebench does not wait for further rounds"
END_LIMIT_S = 120.0
"""For a run that is told that no further round is wanted."""
STOP_LIMIT_S = 20.0
"""For a run that is interrupted, to store what it has."""


class _End:
    """One end of the connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("r", encoding="utf-8")

    def _tell(self, message: dict[str, Any]) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def _heard(self) -> dict[str, Any] | None:
        """Wait for a message and return it; None: the connection has ended."""
        with suppress(ConnectionError):
            line = self._lines.readline()
            return json.loads(line) if line else None
        return None

    def close(self) -> None:
        """End the connection."""
        self._lines.close()
        self._connection.close()


class RoundRequests(_End):
    """The end of the run that measures."""

    @classmethod
    def from_environment(cls) -> Self | None:
        """Take over the connection that this process was started with.

        Returns:
            None: there is none, or a program in between did not pass it on.
        """
        descriptor = os.environ.pop(ROUNDS_ON, None)
        if descriptor is None:
            return None
        try:
            connection = socket.socket(fileno=int(descriptor))
        except OSError:
            return None
        connection.set_inheritable(False)
        return cls(connection)

    def report(self, separate: str | None = None) -> None:
        """Tell that a round is over, and why there can be no further one, if so."""
        with suppress(ConnectionError):  # who asked has gone; `wait` says so
            self._tell({"separate": separate})

    def wait(self) -> list[str] | None:
        """Return the rows of the next round, none for all; None: no further round is wanted."""
        asked = self._heard()
        return None if asked is None else asked["only"]


class AskingEnd(_End):
    """The end of who asks for rounds.

    Attributes:
        theirs: The other end, until a process has inherited it; close it then.
    """

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        super().__init__(ours)

    def environment(self) -> dict[str, str]:
        """Return the environment of a process that inherits the other end."""
        return {**os.environ, ROUNDS_ON: str(self.theirs.fileno())}

    def ask(self, only: Collection[str]) -> None:
        """Ask for a round; who has exited does not hear it."""
        with suppress(ConnectionError):
            self._tell({"only": list(only)})

    def wait_for_round(self) -> str | None:
        """Wait until a round is over; return why there can be no further one, None: there can."""
        told = self._heard()
        return NOT_TOLD if told is None else told["separate"]


@dataclass(frozen=True)
class Version:
    """One version of what is measured.

    Attributes:
        python: Its interpreter, in which scalebench is installed.
        folder: Where it is run: the project, or another checkout of it.
    """

    name: str
    python: str
    folder: Path


class RunProcess:
    """A run that is under way.

    ``arguments`` are its interpreter's; ``log`` takes its standard error. It ``waits`` for requests
    for further rounds.

    Raises:
        UsageError: The interpreter cannot be started.
    """

    def __init__(
        self, version: Version, arguments: Sequence[str], log: Path, waits: bool = False
    ) -> None:
        self.version, self.log = version, log
        self._asking = AskingEnd() if waits else None
        theirs = None if self._asking is None else self._asking.theirs
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as errors, nullcontext() if theirs is None else theirs:
            try:
                self._process = subprocess.Popen(
                    [version.python, *arguments],
                    cwd=version.folder,
                    env=dict(os.environ) if self._asking is None else self._asking.environment(),
                    pass_fds=[] if theirs is None else [theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                )
            except OSError as error:
                if self._asking is not None:
                    self._asking.close()
                raise UsageError(
                    f"{version.name}: {version.python} in {version.folder} cannot be started: "
                    f"{error.strerror}. Check --base-python and --base-dir."
                ) from error

    def wait_for_round(self) -> str | None:
        """Wait until its first round is over; return why it can make no further one, if so."""
        assert self._asking is not None
        return self._asking.wait_for_round()

    def make_round(self, only: Collection[str]) -> None:
        """Have it measure a further round, and wait until it has.

        Raises:
            EnvironmentUnfit: It ended before, or did not complete the round.
        """
        assert self._asking is not None
        self._asking.ask(only)
        reason = self._asking.wait_for_round()
        if reason is not None:
            self.end(END_LIMIT_S)
            why = "it has ended" if reason == NOT_TOLD else reason
            name = self.version.name
            raise EnvironmentUnfit(f"{name}: a round was not completed: {why}: {self.log}")

    def stop(self) -> None:
        """End it, whatever it is doing."""
        if self._asking is not None:
            self._asking.close()
        self._process.terminate()
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def end(self, limit_s: float | None = None) -> None:
        """Let it end; failed cells are stored and judged, anything else ends the comparison.

        Args:
            limit_s: How long that may take, seconds; None: it has work to do before.

        Raises:
            UsageError: It refused its arguments.
            EnvironmentUnfit: It could not be made, or does not end.
        """
        if self._asking is not None:
            self._asking.close()
        try:
            code = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.stop()
            raise EnvironmentUnfit(
                f"{self.version.name}: scalebench run did not end within {limit_s:g} s of being "
                f"told to: {self.log}"
            ) from None
        if code in (ExitCode.OK, ExitCode.CELLS_FAILED):
            return
        said = self.log.read_text(errors="replace").strip().splitlines()
        last = (said or ["it printed nothing"])[-1][:400]
        kind = UsageError if code == ExitCode.USAGE else EnvironmentUnfit
        raise kind(f"{self.version.name}: scalebench run ended with {code}: {last}")
