"""Whether processes of this machine can connect to one another at all, and over what."""

import os
import socket
import sys

from scalebench.errors import EnvironmentUnfit

ADDRESS = "127.0.0.1"
LIMIT_S = 3.0
VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""By which gloo and NCCL are told the interface to talk on."""


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
