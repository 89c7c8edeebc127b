"""Virtual hosts as data: how many ranks each has, the rate of its link, its share of the CPU.

Rates are bits per second, as links are sold. What the links carry is less: of every 1514 bytes of
an Ethernet frame, 1448 are payload (MTU 1500, IPv4 and TCP with time stamps).
"""

import math
import re
from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field, model_validator

from scalebench.errors import UsageError
from scalebench.spec.base import Spec

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
