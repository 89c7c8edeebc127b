"""Where Horovod is told that its processes are: on which host, and how they find one another.

``horovodrun`` sets the same variables. Source: Horovod's documentation, "Gloo rendezvous".
"""

import os
import socket
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scalebench.spec import Horovod
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.script.addresses import own_address

LOOPBACK = "127.0.0.1"


class Host(NamedTuple):
    """Where a rank is.

    Attributes:
        name: Of the machine; virtual hosts share it.
        address: On the interface that gloo uses.
        address_of_name: What the name resolves to on the machine itself.
    """

    name: str
    address: str
    address_of_name: str


def this_host() -> Host:
    """Return where this process is."""
    name = socket.gethostname()
    try:
        address_of_name = socket.gethostbyname(name)
    except OSError:
        address_of_name = LOOPBACK
    return Host(name, own_address(), address_of_name)


def refuse_without_nccl(device: str, has_nccl: bool) -> None:
    """Refuse GPUs where Horovod was built for gloo alone: it ends the process there.

    Raises:
        Unsupported: It was.
    """
    if device == "cuda" and not has_nccl:
        raise Unsupported(
            "this Horovod was built without NCCL and cannot reduce on GPUs; build it with "
            "rm -rf dist/horovod-* && HOROVOD_GPU_OPERATIONS=NCCL make horovod, or run with "
            "--device cpu"
        )


def refuse_without_addresses(hosts: Sequence[Host]) -> None:
    """Refuse several hosts of which one could be reached at a loopback address only.

    Horovod 0.28.1 connects its process sets at the address of the host's name, whatever interface
    it is told to use (``GlooContext::InitializeForProcessSet``).

    Raises:
        Unsupported: One could not be reached.
    """
    if len(set(hosts)) == 1:
        return
    for host in hosts:
        if host.address.startswith("127."):
            raise Unsupported(
                f"Horovod has no address of {host.name} but {host.address}, which other hosts "
                "cannot reach; set GLOO_SOCKET_IFNAME to an interface that connects them, for "
                "example GLOO_SOCKET_IFNAME=eth0"
            )
        if host.address_of_name.startswith("127."):
            raise Unsupported(
                f"Horovod connects at the address of the host name, and {host.name} is "
                f"{host.address_of_name}, which other hosts cannot reach; give it the address of "
                "its network in /etc/hosts (on virtual hosts, --launcher lab, Horovod does not run)"
            )


def host_place(hosts: Sequence[Host], rank: int) -> dict[str, int]:
    """Return where a rank stands on its host and among hosts, as Horovod counts it.

    Args:
        hosts: Of each rank, by rank.
        rank: Whose place is asked for.

    Returns:
        ``LOCAL_RANK`` and ``LOCAL_SIZE``, among the ranks of its host; ``CROSS_RANK`` and
        ``CROSS_SIZE``, among the ranks with the same local rank.
    """
    on_host: dict[Host, list[int]] = {}
    for number, host in enumerate(hosts):
        on_host.setdefault(host, []).append(number)
    here = on_host[hosts[rank]]
    local_rank = here.index(rank)
    across = [ranks[local_rank] for ranks in on_host.values() if len(ranks) > local_rank]
    return {
        "LOCAL_RANK": local_rank,
        "LOCAL_SIZE": len(here),
        "CROSS_RANK": across.index(rank),
        "CROSS_SIZE": len(across),
    } | {"RANK": rank, "SIZE": len(hosts)}


def variables(
    strategy: Horovod, place: Mapping[str, int], hosts: Sequence[Host], port: int
) -> dict[str, str]:
    """Return the variables that ``horovodrun`` sets.

    Args:
        strategy: What is trained.
        place: See `host_place`.
        hosts: Of each rank, by rank; the first one serves the addresses.
        port: Where it does.
    """
    found = {f"HOROVOD_{name}": str(number) for name, number in place.items()} | {
        "HOROVOD_HOSTNAME": hosts[place["RANK"]].address,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": hosts[0].address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": os.environ.get("GLOO_SOCKET_IFNAME", "lo").partition(",")[0],
    }
    if strategy.bucket_mb is not None:
        found["HOROVOD_FUSION_THRESHOLD"] = str(round(strategy.bucket_mb * 2**20))
    return found
