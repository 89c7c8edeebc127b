"""The network as ``ip`` and ``tc`` commands: hosts, racks, and the switch that joins them.

Everything lives in namespaces without a name and without a way out. In the switch's namespace a
bridge stands for each rack, with a port ``h0``, ``h1``, … for each host; racks are joined by one
more bridge. A host's own end of its link is ``eth0``. Both ends of a link are shaped, each in the
direction in which it sends, by ``tbf`` (see tc-tbf(8)).

The launcher's end of the namespace holder: starts it, learns where the hosts are, ends it.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalebench.launch.processes import end_process, interpreter
from scalebench.spec.world import VirtualHosts

INTERFACE = "eth0"
MIN_BURST_BYTES = 32_000
BURST_S = 0.5e-3
QUEUE_BYTES = 8_000_000
"""More than TCP keeps under way: a full queue would drop frames, and a real switch's links are
not lossy at these loads."""


@dataclass
class Commands:
    """Lines for ``ip -batch`` and ``tc -batch``, all for one namespace."""

    ip: list[str] = field(default_factory=list)
    tc: list[str] = field(default_factory=list)


def burst_bytes(bit_per_s: int) -> int:
    """Return how much a link lets through at once after an idle moment.

    That much of a message comes too early, and that much of the time is made up for in which a
    sender was late because it had to wait for a core. Measured on two cores at 50 Mbit/s, a fifth
    of a core for each host, all-reduces from 256 kB on: over four hosts 8, 32 and 64 kB are alike,
    within 1.5 % of the link; over eight, 16 kB is up to 6 % slower than it and 32 kB up to 2 %.
    """
    return max(MIN_BURST_BYTES, round(bit_per_s / 8 * BURST_S))


NETWORK = "10.0.0.0/24"
CONGESTION_CONTROL = "reno"
"""What TCP does between hosts, whatever it does on this machine. Every kernel has it, and without
losses it keeps a link busy. BBR does not where data go both ways: it takes the 5 µs of an idle link
for its delay, and an acknowledgement that waits behind data for a link at its limit. Measured at
60 Mbit/s, all-reduces of 4 MiB over two hosts: 41 to 56 Mbit/s with BBR, 56 to 57 with Reno."""


def shape(interface: str, bit_per_s: int) -> str:
    """Return the ``tc`` command that limits what an interface sends."""
    return (
        f"qdisc add dev {interface} root tbf rate {bit_per_s}bit "
        f"burst {burst_bytes(bit_per_s)} limit {QUEUE_BYTES}"
    )


def switch_commands(
    hosts: VirtualHosts, num_hosts: int, namespaces: Sequence[Path], quiet: bool
) -> Commands:
    """Return what makes the switch, and one end of each host's link.

    ``namespaces``: those of the hosts, as files. ``quiet``: no interface gets an IPv6 address
    (where the kernel has IPv6).
    """
    commands = Commands(ip=["link set lo up"])
    racks = sorted({hosts.rack_of(host) for host in range(num_hosts)})
    for rack in racks:
        commands.ip += _bridge(f"rack{rack}", quiet)
    if len(racks) > 1:
        _join_racks(commands, racks, hosts, quiet)
    for host, (rate, namespace) in enumerate(zip(hosts.rates(num_hosts), namespaces, strict=True)):
        port = f"h{host}"
        commands.ip.append(f"link add {port} type veth peer name {INTERFACE} netns {namespace}")
        commands.ip += _plug_in(port, f"rack{hosts.rack_of(host)}", quiet)
        commands.tc.append(shape(port, rate))
    return commands


def link_commands(host: int, up: bool) -> Commands:
    """Return what cuts a host's link at the switch, or mends it."""
    return Commands(ip=[f"link set h{host} {'up' if up else 'down'}"])


def host_commands(host: int, bit_per_s: int, quiet: bool) -> Commands:
    """Return what makes the host's own end of its link, and its way to the others."""
    return Commands(
        ip=[
            "link set lo up",
            f"addr add 10.0.0.{host + 1}/24 dev {INTERFACE} noprefixroute",
            f"link set {INTERFACE} {_quiet(quiet)}up",
            f"route add {NETWORK} dev {INTERFACE} congctl {CONGESTION_CONTROL}",
        ],
        tc=[shape(INTERFACE, bit_per_s)],
    )


def _join_racks(commands: Commands, racks: Sequence[int], hosts: VirtualHosts, quiet: bool) -> None:
    assert hosts.inter_bit_per_s is not None, "there are racks only with a link between them"
    commands.ip += _bridge("core", quiet)
    for rack in racks:
        up, down = f"up{rack}", f"down{rack}"
        commands.ip.append(f"link add {up} type veth peer name {down}")
        commands.ip += [*_plug_in(up, f"rack{rack}", quiet), *_plug_in(down, "core", quiet)]
        commands.tc += [shape(up, hosts.inter_bit_per_s), shape(down, hosts.inter_bit_per_s)]


def _bridge(name: str, quiet: bool) -> list[str]:
    return [f"link add {name} type bridge", f"link set {name} {_quiet(quiet)}up"]


def _plug_in(port: str, bridge: str, quiet: bool) -> list[str]:
    return [f"link set {port} master {bridge} {_quiet(quiet)}up"]


def _quiet(quiet: bool) -> str:
    return "addrgenmode none " if quiet else ""


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
