"""What a launcher and its processes tell one another: messages over a socket."""

import json
import socket
from collections.abc import Mapping
from typing import Any


class Channel:
    """Messages over a socket: one object of JSON in a line."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._begun = b""

    def fileno(self) -> int:
        """Return what `select` waits for."""
        return self.connection.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; raises OSError when the other end is gone."""
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]] | None:
        """Wait for data; return the messages that are whole by then. None: the other hung up."""
        data = self.connection.recv(1 << 16)
        *lines, self._begun = (self._begun + data).split(b"\n")
        return [json.loads(line) for line in lines] if data else None

    def close(self) -> None:
        """Hang up."""
        self.connection.close()
