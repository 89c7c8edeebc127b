"""Which network interface the ranks of a world talk on."""

import ipaddress
import os
import socket
import sys

import psutil

from scalebench.spec.world import Rendezvous


def socket_variables(rendezvous: Rendezvous) -> dict[str, str]:
    """Return the variables that name the interface, where the user has set none.

    On one machine: the loopback interface. Between machines gloo would take the interface that the
    host's own name stands for, which on many systems is the loopback one; so it is told the one
    that leads to where the world meets. NCCL finds its interfaces by itself.
    """
    if rendezvous.one_node:
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        wanted = dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), loopback)
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
