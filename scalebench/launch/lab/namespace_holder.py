"""The process that makes the network of a lab and keeps it for as long as its launcher lives.

It holds the namespaces open and nothing else does but the ranks in them, so the kernel removes
namespaces, bridges, links and their shaping when it ends: there is nothing to clean up, however
the launcher ended. It ends when its standard input does, which the launcher holds the other end of.

Where it may not make a namespace it tries again as root of a new user namespace; ranks
enter that first. It is started as
``python -m scalebench.launch.lab.namespace_holder NAME HOSTS N`` (the lab's name is there for
those who list processes) and answers in one line of JSON: ``switch``, ``namespaces`` (files of the
hosts, in their order), ``user_namespace`` (file, or null), or ``error``. A line of standard input
with ``host`` and ``up`` cuts that host's link or mends it; the answer is ``{}`` or ``error``.
"""

import ctypes
import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from scalebench.launch.lab.topology import Commands, host_commands, link_commands, switch_commands
from scalebench.spec.world import VirtualHosts

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
COMMAND_LIMIT_S = 20


class CannotMake(Exception):
    """Something of the lab cannot be made here; the text says what and why."""


def _call(name: str, *arguments: int) -> None:
    """Call a function of the C library; raises OSError when it fails."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def become_root_of_user_namespace() -> None:
    """Make a user namespace in which this process's user is root.

    Raises:
        CannotMake: The kernel, or its configuration, forbids that.
    """
    user, group = os.geteuid(), os.getegid()
    try:
        _call("unshare", CLONE_NEWUSER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    except OSError as error:
        raise CannotMake(
            "no permission: neither root (CAP_SYS_ADMIN) nor user namespaces "
            f"({error.strerror or error})"
        ) from error


def new_namespace() -> int:
    """Move to a fresh network namespace; return a descriptor that keeps it.

    Raises:
        PermissionError: Not without a user namespace.
        CannotMake: The kernel has no network namespaces.
    """
    try:
        _call("unshare", CLONE_NEWNET)
    except OSError as error:
        if error.errno == errno.EPERM:
            raise
        raise CannotMake(f"no network namespaces: {error.strerror}") from error
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def first_namespace() -> tuple[int, bool]:
    """Return the first namespace, and whether it took a user namespace to make it."""
    try:
        return new_namespace(), False
    except PermissionError:
        become_root_of_user_namespace()
    try:
        return new_namespace(), True
    except PermissionError as error:
        raise CannotMake("no permission to make a network namespace") from error


def carry_out(commands: Commands, namespace: int) -> None:
    """Run commands in a namespace.

    Raises:
        CannotMake: One of them failed.
    """
    _call("setns", namespace, CLONE_NEWNET)
    for program, lines in (("ip", commands.ip), ("tc", commands.tc)):
        done = subprocess.run(
            [program, "-batch", "-"],
            input="\n".join(lines) + "\n",
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
        )
        if done.returncode != 0:
            raise CannotMake(_reason(program, done.stderr))


def _reason(program: str, said: str) -> str:
    """Return why a command failed, in terms of what is missing."""
    first = said.strip().splitlines()[0] if said.strip() else "no reason given"
    first = first.removeprefix("Error: ").removeprefix("RTNETLINK answers: ")
    lacking = "kind is unknown" in said or "No such file" in said
    if program == "tc":
        what = "this kernel has no tbf (module sch_tbf)" if lacking else "a link cannot be shaped"
    else:
        unknown = "Unknown device type" in said or "not supported" in said
        what = "this kernel has no veth or no bridge" if unknown else "a link cannot be made"
    return f"{what}: {program} says {first!r}"


def make_network(hosts: VirtualHosts, num_hosts: int) -> dict[str, Any]:
    """Make the hosts and what joins them; return what the launcher has to know.

    Raises:
        CannotMake: Something is missing or forbidden here.
    """
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            raise CannotMake(f"no program {program!r}: install iproute2")
    switch, in_user_namespace = first_namespace()
    descriptors = [new_namespace() for _ in range(num_hosts)]
    files = [Path(f"/proc/{os.getpid()}/fd/{descriptor}") for descriptor in descriptors]
    quiet = Path("/proc/sys/net/ipv6").is_dir()
    carry_out(switch_commands(hosts, num_hosts, files, quiet), switch)
    for host, (rate, descriptor) in enumerate(
        zip(hosts.rates(num_hosts), descriptors, strict=True)
    ):
        carry_out(host_commands(host, rate, quiet), descriptor)
    return {
        "switch": f"/proc/{os.getpid()}/fd/{switch}",
        "namespaces": [os.fspath(file) for file in files],
        "user_namespace": f"/proc/{os.getpid()}/ns/user" if in_user_namespace else None,
    }


def main(arguments: list[str]) -> None:
    """Make what is asked for, say so, and keep it until standard input ends."""
    _, hosts, num_hosts = arguments
    try:
        answer = make_network(VirtualHosts.model_validate_json(hosts), int(num_hosts))
    except CannotMake as error:
        answer = {"error": str(error)}
    except (OSError, subprocess.SubprocessError) as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), flush=True)
    if "error" in answer:
        return
    switch = os.open(answer["switch"], os.O_RDONLY | os.O_CLOEXEC)
    for line in sys.stdin.buffer:
        print(json.dumps(_set_link(switch, line)), flush=True)


def _set_link(switch: int, line: bytes) -> dict[str, str]:
    try:
        wanted = json.loads(line)
        carry_out(link_commands(wanted["host"], wanted["up"]), switch)
    except (CannotMake, OSError, subprocess.SubprocessError) as error:
        return {"error": str(error)}
    return {}


if __name__ == "__main__":
    main(sys.argv[1:])
