"""Which network interface the ranks of a world talk on.

The GPU of a rank, watched while the rank trains by a process that the rank's parent starts.

The parent itself has no threads and has never touched a driver, and stays so: it forks the ranks.
"""

import ipaddress
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence

import psutil

from scalebench.spec.world import Rendezvous

WATCHER = "scalebench.launch.monitor.watcher"
ANSWER_LIMIT_S = 5.0


class DeviceWatch:
    """Watches GPUs from now on until `stop`.

    Args:
        uuids: Of the GPUs.
        family: Processes that are of the launch, with all that descend from them.
    """

    def __init__(self, uuids: Sequence[str], family: Sequence[int]) -> None:
        own = [sys.executable, *(["-P"] if sys.flags.safe_path else [])]
        self.process = subprocess.Popen(
            [*own, "-m", WATCHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"uuids": uuids, "family": family}) + "\n")
        self.process.stdin.flush()

    def stop(self) -> str | None:
        """Return what was seen, a `NodeTrack` as JSON; None: the process does not tell."""
        try:
            return self.process.communicate("end\n", timeout=ANSWER_LIMIT_S)[0] or None
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            return None


VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def socket_variables(rendezvous: Rendezvous) -> dict[str, str]:
    """Return the variables that name the interface, where the user has set none.

    On one machine: the loopback interface. Between machines gloo would take the interface that the
    host's own name stands for, which on many systems is the loopback one; so it is told the one
    that leads to where the world meets. NCCL finds its interfaces by itself.
    """
    if rendezvous.one_node:
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        wanted = dict.fromkeys(VARIABLES, loopback)
    else:
        interface = interface_towards(rendezvous.host, rendezvous.port)
        wanted = {} if interface is None else {"GLOO_SOCKET_IFNAME": interface}
    return {name: value for name, value in wanted.items() if name not in os.environ}


def interface_towards(host: str, port: int) -> str | None:
    """Return the interface over which a host is reached, or None: it is not known."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[
            0
        ]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # sends nothing
            own = probe.getsockname()[0].partition("%")[0]
    except OSError:
        return None
    if ipaddress.ip_address(own).is_loopback and not _is_loopback(host):
        return None  # the machine's own name stands for the loopback interface
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == own for each in addresses):
            return name
    return None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
