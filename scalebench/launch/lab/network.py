"""The launcher's end of the namespace holder: starts it, learns where the hosts are, ends it."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from scalebench.launch.processes import end_process, interpreter
from scalebench.spec.virtual_hosts import VirtualHosts

HOLDER = "scalebench.launch.lab.namespace_holder"


class NoNetwork(Exception):
    """Hosts with links cannot be made here; the text says why."""


class Network:
    """Hosts in separate namespaces, for as long as this object is open.

    Raises:
        NoNetwork: They cannot be made here.
    """

    def __init__(self, hosts: VirtualHosts, num_hosts: int) -> None:
        name = f"scalebench-lab-{os.getpid()}"
        self.process = subprocess.Popen(
            [*(*interpreter(), "-m", HOLDER), *(name, hosts.model_dump_json(), str(num_hosts))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the launcher
        )
        try:
            answer = self._answer()
        except BaseException:
            self.close()
            raise
        self.switch: Path = Path(answer["switch"])
        self.namespaces: list[str] = answer["namespaces"]
        self.user_namespace: str | None = answer["user_namespace"]

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        line = self.process.stdout.readline()
        if not line:
            said = self.process.stderr.read().decode(errors="replace").strip().splitlines()
            raise NoNetwork(f"the process that makes it ended: {said[-1] if said else 'no output'}")
        answer = dict(json.loads(line))
        if "error" in answer:
            raise NoNetwork(answer["error"])
        return answer

    def set_link(self, host: int, up: bool) -> None:
        """Cut a host's link, or mend it: nothing passes while it is down, and no one is told.

        Raises:
            NoNetwork: It cannot be done; the text says why.
        """
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{json.dumps({'host': host, 'up': up})}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            raise NoNetwork("the process that holds it has ended") from None
        self._answer()

    def close(self) -> None:
        """Let the holder end; the kernel removes the network when no process is in it any more."""
        end_process(self.process)
