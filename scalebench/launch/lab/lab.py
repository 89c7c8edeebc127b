"""A lab: the virtual hosts of one session, and what is possible here of them."""

from dataclasses import dataclass
from typing import Any

from scalebench.errors import EnvironmentUnfit
from scalebench.launch.lab.quota import NoQuota, Quotas, cpu_hierarchy
from scalebench.launch.lab.topology import INTERFACE, Network, NoNetwork
from scalebench.launch.lab.wakeups import Wakeups
from scalebench.resources import allowed_processors, processors_of_rank, read_processors
from scalebench.spec.virtual_hosts import VirtualHosts


class Lab:
    """Virtual hosts for ranks to run in; a placement of `LocalLauncher`.

    ``num_ranks``: the largest number of ranks of a launch.

    Raises:
        EnvironmentUnfit: It cannot be made here; the text says why and what to do.
    """

    def __init__(self, hosts: VirtualHosts, num_ranks: int) -> None:
        self.hosts = hosts
        try:
            self.network = Network(hosts, hosts.num_hosts(num_ranks))
        except NoNetwork as error:
            raise EnvironmentUnfit(
                f"Virtual hosts cannot be made here: {error}. `scalebench doctor` says what is "
                "possible; --launcher local runs the ranks without virtual hosts."
            ) from None
        self.quotas: Quotas | None = None
        self.wakeups: Wakeups | None = None
        shares = hosts.shares(num_ranks)
        if shares is not None:
            try:
                self.quotas = Quotas(shares, cpu_hierarchy())
            except NoQuota as error:
                self.network.close()
                raise EnvironmentUnfit(
                    f"--cpus-per-rank: no CPU share can be set here: {error}. Run as root, or "
                    "where a cgroup with the CPU controller is delegated (systemd-run --user "
                    "--scope -p Delegate=yes ...); or leave it out."
                ) from None
            self.wakeups = Wakeups(processors_of_ranks(num_ranks, hosts.threads or 1))

    def of(self, rank: int) -> dict[str, Any]:
        """Return what puts a rank into its host: namespaces, quota, the interface to talk on."""
        network = self.network
        place = {
            "network_namespace": network.namespaces[self.hosts.host_of(rank)],
            "user_namespace": network.user_namespace,
            "cgroup": None if self.quotas is None else str(self.quotas.members[rank]),
        }
        return {"place": place, "environment": {"GLOO_SOCKET_IFNAME": INTERFACE}}

    def set_link(self, rank: int, up: bool) -> None:
        """Cut the link of a rank's host, or mend it.

        Raises:
            EnvironmentUnfit: It cannot be done here.
        """
        try:
            self.network.set_link(self.hosts.host_of(rank), up)
        except NoNetwork as error:
            raise EnvironmentUnfit(f"The link of rank {rank} cannot be changed: {error}.") from None

    def close(self) -> None:
        """Remove everything; the ranks have ended before."""
        self.network.close()
        if self.wakeups is not None:
            self.wakeups.close()
        if self.quotas is not None:
            self.quotas.close()


def processors_of_ranks(num_ranks: int, threads: int) -> set[int]:
    """Return the processors to which the ranks of a machine are pinned."""
    allowed = read_processors(allowed_processors())
    ranks = (processors_of_rank(allowed, threads, [None] * (r + 1)) for r in range(num_ranks))
    return {processor.number for mine in ranks for processor in mine}


@dataclass(frozen=True)
class Possible:
    """What virtual hosts could have here.

    Attributes:
        network: Why there can be no hosts with links; None: there can.
        quota: Why ranks can have no CPU share; None: they can.
        rootless: The hosts are made in a user namespace.
    """

    network: str | None
    quota: str | None
    rootless: bool = False


def try_lab() -> Possible:
    """Make a small lab and remove it again: nothing tells more surely what is possible."""
    hosts = VirtualHosts(link_bit_per_s=(100_000_000,), cpus_per_rank=0.5)
    no_network = no_quota = None
    rootless = False
    try:
        network = Network(hosts, 2)
        rootless = network.user_namespace is not None
        network.close()
    except NoNetwork as error:
        no_network = str(error)
    try:
        Quotas((0.5,), cpu_hierarchy()).close()
    except NoQuota as error:
        no_quota = str(error)
    return Possible(no_network, no_quota, rootless)
