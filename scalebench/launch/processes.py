"""Processes that are started from here: their interpreter, their end, and how they connect."""

import os
import socket
import subprocess
import sys
from typing import Any

from scalebench.errors import EnvironmentUnfit

END_LIMIT_S = 5.0
"""What a process that was told to end has for it."""
ADDRESS = "127.0.0.1"
LIMIT_S = 3.0
VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""By which gloo and NCCL are told the interface to talk on."""


def interpreter() -> list[str]:
    """Return the words that start this Python, to be followed by ``-m`` and a module.

    ``-m`` alone looks for modules in the current folder first: a ``json.py`` there would be
    executed when suites are listed. So does only what was started with ``python -m`` itself;
    it may be a checkout, whose ranks have to be of the checkout too.
    """
    looks_here = not {"", os.getcwd()}.isdisjoint(sys.path)
    return [sys.executable] if looks_here else [sys.executable, "-P"]


def end_process(process: "subprocess.Popen[Any]") -> bool:
    """Wait for a process that is about to end; False: it did not within the limit, and is killed.

    Its end of every pipe is closed before: a helper ends when its standard input does.
    """
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(END_LIMIT_S)
        return True
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False


def loopback_environment() -> dict[str, str]:
    """Return the variables that keep a single-machine job on the loopback interface."""
    interface = "lo0" if sys.platform == "darwin" else "lo"
    return {name: interface for name in VARIABLES if name not in os.environ}


def why_no_loopback() -> str | None:
    """Return why nothing here can connect to 127.0.0.1, or None: it can."""
    try:
        with socket.create_server((ADDRESS, 0)) as server:
            socket.create_connection(server.getsockname(), LIMIT_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def check_loopback() -> None:
    """Check that ranks of this machine can connect; without that they wait until their time is up.

    Raises:
        EnvironmentUnfit: They cannot.
    """
    reason = why_no_loopback()
    if reason is not None:
        raise EnvironmentUnfit(
            f"Ranks on this machine connect through {ADDRESS}, and nothing can connect to it here: "
            f"{reason}. Bring the loopback interface up: ip link set lo up; and give it its "
            f"address, if it has none: ip address add {ADDRESS}/8 dev lo."
        )
