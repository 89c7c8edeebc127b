"""Where ranks are: in a world that somebody else has started, or on virtual hosts.

torchrun, srun, mpirun and the like start every process of a job at once and tell each its number.
scalebench then makes up each size from the first of them, node-filling first.

Virtual hosts as data: how many ranks each has, the rate of its link, its share of the CPU.

Rates are bits per second, as links are sold. What the links carry is less: of every 1514 bytes of
an Ethernet frame, 1448 are payload (MTU 1500, IPv4 and TCP with time stamps).
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from scalebench.errors import UsageError
from scalebench.spec.base import Spec

WorldLauncher = Literal["torchrun", "srun", "mpirun", "pmi", "environment"]
MIN_BIT_PER_S = 1_000_000
MAX_BIT_PER_S = 10_000_000_000
MAX_HOSTS = 250
"""What the address plan and a bridge hold with room to spare."""

FORWARDED_BIT_PER_S = 800_000_000
"""What the kernel forwards in all between eight virtual hosts on two cores: measured there, and
taken for other machines, too, because those were not measured."""

PAYLOAD_SHARE = 1448 / 1514

BOTH_WAYS_SHARE = PAYLOAD_SHARE / (1 + 66 / (2 * 1514))
"""The same while as much goes the other way: a link then also carries the acknowledgements of
that, a frame of 66 bytes for every second one received (delayed acknowledgement, RFC 5681 §4.2)."""

MIN_CPU_SHARE = 0.01
_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}

CpuShare = Annotated[float, Field(ge=MIN_CPU_SHARE, allow_inf_nan=False)]
Rate = Annotated[int, Field(ge=MIN_BIT_PER_S, le=MAX_BIT_PER_S)]


class Rendezvous(Spec):
    """Where the processes of a world find one another: a store of keys and values.

    Attributes:
        host: Name or address of the machine that serves it.
        port: TCP port there.
        served: The launcher serves it already; else the first process does.
        one_node: All are on one machine: nothing leaves the loopback interface.
        prefix: Of every key, so that nothing else in the store is met.
    """

    host: str
    port: int = Field(ge=1, le=65535)
    served: bool = False
    one_node: bool = False
    prefix: str = "scalebench"


class WorldMember(Spec):
    """One process of a world, as its environment tells.

    Attributes:
        launcher: Who started it.
        local_rank: Its number among those on its machine; None: not told.
    """

    launcher: WorldLauncher
    rank: int = Field(ge=0)
    world_size: int = Field(ge=1)
    local_rank: int | None = Field(None, ge=0)
    rendezvous: Rendezvous


class Node(Spec):
    """A machine of a world.

    Attributes:
        ranks: Numbers, in the world, of the processes there, in rising order.
        num_cores: That those processes may use together.
        num_gpus: Likewise.
    """

    host: str
    ranks: tuple[int, ...] = Field(min_length=1)
    num_cores: int = Field(ge=1)
    num_gpus: int = Field(0, ge=0)


class World(Spec):
    """All processes of a world and where they are.

    Attributes:
        nodes: In the order of their first processes.
    """

    launcher: WorldLauncher
    nodes: tuple[Node, ...] = Field(min_length=1)

    @property
    def size(self) -> int:
        """Number of processes."""
        return sum(len(node.ranks) for node in self.nodes)

    @property
    def order(self) -> tuple[int, ...]:
        """The processes in the order in which sizes take them: node by node."""
        return tuple(rank for node in self.nodes for rank in node.ranks)

    def places(self) -> dict[int, dict[str, object]]:
        """Return, for each process, its machine and its number there: a rank's request has both."""
        return {
            rank: {"host": node.host, "local_rank": index}
            for node in self.nodes
            for index, rank in enumerate(node.ranks)
        }

    def placed(self, num_ranks: int) -> list[int]:
        """Return how many of the first ``num_ranks`` are on each node; nodes without any left out.

        Raises:
            ValueError: There are not so many.
        """
        if not 1 <= num_ranks <= self.size:
            raise ValueError(f"{num_ranks} of {self.size} processes")
        left, counts = num_ranks, []
        for node in self.nodes:
            counts.append(min(left, len(node.ranks)))
            left -= counts[-1]
            if not left:
                break
        return counts

    def fits(self, num_ranks: int, on_gpus: bool) -> bool:
        """Tell whether each of the first ``num_ranks`` has a GPU, or a core, to itself."""
        counts = zip(self.nodes, self.placed(num_ranks), strict=False)
        return all(count <= (n.num_gpus if on_gpus else n.num_cores) for n, count in counts)

    def capacity(self, on_gpus: bool) -> int:
        """Return up to which size every rank has a GPU, or a core, to itself."""
        fitting = (n for n in range(1, self.size + 1) if not self.fits(n, on_gpus))
        return next(fitting, self.size + 1) - 1

    def threads(self, sizes: Sequence[int]) -> int:
        """Return the threads that each rank may keep busy at all of some sizes."""
        shares = [
            node.num_cores // count
            for n in sizes
            for node, count in zip(self.nodes, self.placed(n), strict=False)
        ]
        return max(1, min(shares, default=1))

    def too_small_for(self, num_ranks: int) -> str | None:
        """Say why a size cannot be had, or None."""
        if num_ranks <= self.size:
            return None
        return f"{num_ranks} ranks are more than the {self.size} that {self.launcher} started"

    def describe(self, sizes: Sequence[int]) -> str:
        """Return one line for the reader: who started what where, and where the sizes are."""
        shape = Counter(len(node.ranks) for node in self.nodes)
        parts = [f"{count} x {ranks}" for ranks, count in sorted(shape.items(), reverse=True)]
        nodes = "1 node" if len(self.nodes) == 1 else f"{len(self.nodes)} nodes"
        line = f"{self.size} ranks on {nodes} ({' + '.join(parts)}), started by {self.launcher}"
        if len(self.nodes) == 1:
            return line
        placed = [f"N = {n}: {'+'.join(map(str, self.placed(n)))}" for n in sizes if n <= self.size]
        return f"{line}; ranks per node, node-filling first: {', '.join(placed)}"


def parse_rate(text: str) -> int:
    """Return a link's rate in bits per second.

    Args:
        text: A number with ``kbit``, ``mbit`` or ``gbit``: ``"50mbit"``.

    Raises:
        UsageError: It is no rate, or one that no link here can have.
    """
    match = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)\s*(kbit|mbit|gbit)(?:/s)?", text.strip().lower())
    if match is None:
        raise UsageError(
            f"{text!r} is not the rate of a link. Give a number with kbit, mbit or gbit, for "
            "example 50mbit."
        )
    rate = round(float(match[1]) * _UNITS[match[2]])
    if not MIN_BIT_PER_S <= rate <= MAX_BIT_PER_S:
        raise UsageError(f"A link of {text} cannot be made. Give a rate from 1mbit to 10gbit.")
    return rate


def rate_text(bit_per_s: int) -> str:
    """Write a rate as `parse_rate` reads it."""
    for unit, size in reversed(_UNITS.items()):
        if bit_per_s >= size and bit_per_s % (size // 1000) == 0:
            return f"{bit_per_s / size:g}{unit}"
    return f"{bit_per_s / 1000:g}kbit"


class VirtualHosts(Spec):
    """Hosts on this machine, each with its own link to a switch.

    Attributes:
        link_bit_per_s: Rate of the hosts' links, in each direction: one for all, or one per host.
        cpus_per_rank: Share of a core (or cores) that each rank may use; None: no quota, or not the
            same for all.
        cpu_shares: That of each rank where they differ; a job of fewer ranks has the first ones.
        ranks_per_host: Ranks that share a host's link, in the order of their numbers.
        hosts_per_rack: Hosts behind one switch; None: all are.
        inter_bit_per_s: Rate of the link between a rack's switch and the one that joins the
            racks, in each direction.
    """

    link_bit_per_s: tuple[Rate, ...] = Field(min_length=1)
    cpus_per_rank: CpuShare | None = None
    cpu_shares: tuple[CpuShare, ...] | None = None
    ranks_per_host: int = Field(1, ge=1)
    hosts_per_rack: int | None = Field(None, ge=1)
    inter_bit_per_s: Rate | None = None

    @model_validator(mode="after")
    def _racks_have_a_link(self) -> Self:
        if (self.hosts_per_rack is None) != (self.inter_bit_per_s is None):
            raise ValueError("racks need both hosts_per_rack and inter_bit_per_s")
        return self

    @model_validator(mode="after")
    def _one_kind_of_share(self) -> Self:
        if self.cpus_per_rank is not None and self.cpu_shares is not None:
            raise ValueError("give cpus_per_rank for all ranks or cpu_shares for each, not both")
        return self

    @property
    def link(self) -> str:
        """The links as the command line takes them: ``"50mbit"``, ``"200mbit,50mbit"``.

        With racks: ``"200mbit, 50mbit between racks of 2"``.
        """
        hosts = ",".join(rate_text(rate) for rate in self.link_bit_per_s)
        if self.inter_bit_per_s is None:
            return hosts
        return f"{hosts}, {rate_text(self.inter_bit_per_s)} between racks of {self.hosts_per_rack}"

    @property
    def threads(self) -> int | None:
        """Intra-op threads of a rank: as many as its share can keep busy. None: no quota."""
        shares = self.shares(1)
        return None if shares is None else math.ceil(max(self.cpu_shares or shares))

    def shares(self, num_ranks: int) -> tuple[float, ...] | None:
        """Return the CPU share of each of the first ``num_ranks`` ranks; None: no quota."""
        if self.cpu_shares is not None:
            return self.cpu_shares[:num_ranks]
        return None if self.cpus_per_rank is None else (self.cpus_per_rank,) * num_ranks

    @property
    def cpu(self) -> str | None:
        """The CPU shares as the command line takes them: ``"0.2"``, ``"1,0.33"``; None: all."""
        shares = self.cpu_shares or self.shares(1)
        return None if shares is None else ",".join(f"{share:g}" for share in shares)

    def num_hosts(self, num_ranks: int) -> int:
        """Return how many hosts hold that many ranks."""
        return -(-num_ranks // self.ranks_per_host)

    def host_of(self, rank: int) -> int:
        """Return the host of a rank."""
        return rank // self.ranks_per_host

    def rack_of(self, host: int) -> int:
        """Return the rack of a host; without racks all hosts are in the first."""
        return 0 if self.hosts_per_rack is None else host // self.hosts_per_rack

    def rates(self, num_hosts: int) -> list[int]:
        """Return the rate of each of the first ``num_hosts`` links, bits per second."""
        if len(self.link_bit_per_s) == 1:
            return [self.link_bit_per_s[0]] * num_hosts
        return list(self.link_bit_per_s[:num_hosts])

    def capacity(self, num_cores: int) -> int | None:
        """Return how many ranks get their share at all times; None: there is no quota.

        Ranks are pinned. With a share of at most one core a core holds whole ranks only; with a
        larger one a rank has whole cores.
        """
        if self.cpu_shares is not None:
            return _capacity(self.cpu_shares, num_cores)
        if self.cpus_per_rank is None:
            return None
        if self.cpus_per_rank <= 1:
            return num_cores * math.floor(1 / self.cpus_per_rank + 1e-9)
        return num_cores // math.ceil(self.cpus_per_rank)

    def overload(self, num_ranks: int) -> str | None:
        """Say why the links may not hold with that many ranks, or None: they do."""
        num_hosts = self.num_hosts(num_ranks)
        together = sum(self.rates(num_hosts))
        if num_hosts < 2 or together <= FORWARDED_BIT_PER_S:
            return None
        return (
            f"{num_hosts} links of {rate_text(together)} in all, and this kernel is known to "
            f"forward {rate_text(FORWARDED_BIT_PER_S)}"
        )

    def check(self, world_sizes: Sequence[int], num_cores: int) -> None:
        """Raise UsageError for what this machine, or the sizes, cannot have."""
        num_hosts = self.num_hosts(max(world_sizes))
        num_rates = len(self.link_bit_per_s)
        if num_rates > 1 and num_rates != num_hosts:
            raise UsageError(
                f"--link gives {num_rates} rates and N={max(world_sizes)} has {num_hosts} hosts. "
                f"Give {num_hosts} rates, or one for all."
            )
        if num_hosts > MAX_HOSTS:
            raise UsageError(
                f"{num_hosts} virtual hosts are too many: at most {MAX_HOSTS}. Give a smaller "
                "--gpus, or more --ranks-per-host."
            )
        num_shares = len(self.cpu_shares or ())
        if self.cpu_shares is not None and num_shares != max(world_sizes):
            raise UsageError(
                f"--cpus-per-rank gives {num_shares} shares and N={max(world_sizes)} has "
                f"{max(world_sizes)} ranks. Give {max(world_sizes)} shares, or one for all."
            )
        most = max(self.shares(max(world_sizes)) or (0.0,))
        if most > num_cores:
            raise UsageError(
                f"--cpus-per-rank {most:g} is more CPU than there is: "
                f"{num_cores} core(s). Give at most {num_cores}."
            )


def _capacity(shares: Sequence[float], num_cores: int) -> int:
    """Return how many of the first ranks get their different shares at all times.

    Ranks are pinned one core after the other, each to as many as the largest share needs.
    """
    cores_each = math.ceil(max(shares))
    if cores_each > 1:
        return min(len(shares), num_cores // cores_each)
    load = [0.0] * num_cores
    for rank, share in enumerate(shares):
        load[rank % num_cores] += share
        if load[rank % num_cores] > 1 + 1e-9:
            return rank
    return len(shares)
