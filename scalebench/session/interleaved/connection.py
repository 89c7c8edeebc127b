"""The connection over which one process has another one measure a round, and then the next.

Each message is a line of JSON. ``{"separate": reason}`` comes when a round is over, with the reason
why the run can make no further one, or null. ``{"only": [row, …]}`` asks for a round, of all rows
where the list is empty. Where the connection ends, no further round is wanted.
"""

import json
import os
import socket
from collections.abc import Collection
from contextlib import suppress
from typing import Any, Self

ROUNDS_ON = "SCALEBENCH_ROUNDS_ON"
"""Environment variable with the descriptor of the measuring end. A run that does not know it, of an
earlier version, makes its one round and exits."""

NOT_TOLD = "its scalebench does not wait for further rounds"


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
