"""On which address the ranks of a script find one another."""

import fcntl
import os
import socket
import struct

SIOCGIFADDR = 0x8915
"""See netdevice(7)."""


def own_address() -> str:
    """Return the address of this host on the interface that gloo is told to use.

    Without such an interface, the loopback address.
    """
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    if not interface:
        return "127.0.0.1"
    asked = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, asked)
        except OSError:
            return "127.0.0.1"
    return socket.inet_ntoa(answer[20:24])
