"""What an operation takes in a group of ranks, for many groups at once.

A group is known by its ranks and by how many of them share a node. Nominal links follow the laws of
`scalebench.costmodel.links.laws`; calibrated ones their own fits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from scalebench.costmodel.links.fitted import LinkModel, NoFit
from scalebench.costmodel.links.laws import hierarchical_all_reduce
from scalebench.costmodel.links.laws import law_terms as law
from scalebench.costmodel.links.topology import LINKS, Topology
from scalebench.errors import UsageError, unknown_name

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

ALGORITHMS = {"all_to_all": "pairwise", "send_recv": "point-to-point"}
"""Operation → its law; a ring for all others."""

STANDS_FOR = {
    "all_gather": "all_reduce",
    "reduce_scatter": "all_reduce",
    "all_to_all": "all_gather",
    "send_recv": "all_gather",
    "send_recv_ring": "send_recv",
}
"""Operation → the calibrated one whose link it is taken to use, where it was not calibrated."""


class SearchLinks(Protocol):
    """Links that a search asks."""

    @property
    def ranks_per_node(self) -> int:
        """Ranks that share a node."""

    @property
    def described(self) -> str:
        """Where they are from."""

    def time(self, op: str, ranks: Ints, near: Ints, size_bytes: Floats) -> Floats:
        """Return seconds of an operation for each group; 0 for groups of one rank.

        Args:
            op: Operation.
            ranks: Of each group.
            near: How many of them share a node.
            size_bytes: Full size, as nccl-tests counts it.
        """


class LinkValues(NamedTuple):
    """What is left of nominal links.

    Attributes:
        inside: Of the bandwidth in a node, a ratio.
        across: Of the network's between two nodes.
        decline: Power of the number of nodes, in pairs, by which the network's bandwidth falls.
        network_s: Of a message between nodes, seconds; 0: the nominal latency.
        collective_s: To start an operation, seconds.
    """

    inside: float = 1.0
    across: float = 1.0
    decline: float = 0.0
    network_s: float = 0.0
    collective_s: float = 0.0

    @classmethod
    def of(cls, found: Any) -> "LinkValues":
        """Return those of a device's parameters, which have the same names."""
        return cls(*(getattr(found, name) for name in cls._fields))


NOMINAL = LinkValues()


@dataclass(frozen=True)
class NominalLinks:
    """Links by their data sheets, on nodes of equal ranks.

    All groups of the same kind communicate at once. A group with g of the G ranks of a node gets
    g/G of the node's network. A ring crosses it once; where whole parts of a group share nodes,
    operations may also go by levels, inside the nodes and then across, and the faster way counts.
    """

    topology: Topology
    described: str
    values: LinkValues = NOMINAL

    @property
    def ranks_per_node(self) -> int:
        """G."""
        return self.topology.ranks_per_node

    @property
    def _network_s(self) -> float:
        return self.values.network_s or self.topology.across.latency_s

    def _across(self, nodes: Floats) -> Floats:
        """Return what is left of the network's bandwidth between so many nodes."""
        return self.values.across * np.maximum(nodes / 2, 1.0) ** -self.values.decline

    def time(self, op: str, ranks: Ints, near: Ints, size_bytes: Floats) -> Floats:
        """Return seconds of an operation for each group."""
        top, values = self.topology, self.values
        spread = near < ranks
        network = top.node_byte_per_s * np.minimum(near, self.ranks_per_node) / self.ranks_per_node
        inside = values.inside * top.inside.bandwidth_byte_per_s
        network = np.minimum(network * self._across(ranks / near), inside)
        bandwidth = np.where(spread, network, inside)
        some = 1 / near if values.network_s else 1.0  # of a ring's messages; all: nothing is known
        crossing = np.where(spread, some, 0.0)
        latency = crossing * self._network_s + (1 - crossing) * top.inside.latency_s
        messages, factor = _terms_of(op, ranks)
        flat = messages * latency + factor * size_bytes / bandwidth
        if op in ("all_reduce", "all_gather", "reduce_scatter"):
            flat = np.where(spread & (near > 1), np.minimum(flat, self._levels(
                op, ranks, near, size_bytes)), flat)  # fmt: skip
        return np.where(ranks > 1, flat + values.collective_s, 0.0)

    def _levels(self, op: str, ranks: Ints, near: Ints, size_bytes: Floats) -> Floats:
        """Return the time by levels: g inside each of M nodes, then across on a part of D."""
        top = self.topology
        base = self.ranks_per_node + 1
        terms = by_number(ranks * base + near, lambda key: _two_levels(op, *divmod(key, base)))
        inside_steps, inside_bytes, across_steps, across_bytes = terms.T
        # Each rank of a node has its own share of the network: B_e of one rank.
        own = self.values.inside * top.inside.bandwidth_byte_per_s
        share = top.node_byte_per_s / self.ranks_per_node * self._across(ranks / near)
        share = np.minimum(share, own)
        inside = inside_steps * top.inside.latency_s
        inside = inside + inside_bytes * size_bytes / own
        across = across_steps * self._network_s
        return np.asarray(inside + across + across_bytes * size_bytes / share)


def _two_levels(op: str, ranks: int, near: int) -> tuple[float, float, float, float]:
    """Return messages and bytes inside and across; infinite where the levels do not divide."""
    nodes, left = divmod(ranks, near)
    if left:
        return (np.inf, 0.0, 0.0, 0.0)
    inside, across = hierarchical_all_reduce(near, nodes)
    half = 1.0 if op == "all_reduce" else 0.5  # a gather is the second half of an all-reduce
    return (
        half * inside.latency_steps,
        half * inside.bytes_factor,
        half * across.latency_steps,
        half * across.bytes_factor,
    )


def _terms_of(op: str, ranks: Ints) -> tuple[Floats, Floats]:
    table = by_number(ranks, lambda n: law(op, ALGORITHMS.get(op, "ring"), n))
    return table[:, 0], table[:, 1]


def by_number(numbers: Ints, answer: Callable[[int], Sequence[float]]) -> Floats:
    """Return a row for each number; each distinct one is asked for once.

    Args:
        numbers: Small, not negative.
        answer: The row of a number.
    """
    seen = np.zeros(int(numbers.max(initial=0)) + 1, dtype=bool)
    seen[numbers] = True
    distinct = np.flatnonzero(seen)
    rows = np.array([answer(int(number)) for number in distinct], dtype=float)
    place = np.zeros(len(seen), dtype=np.int64)
    place[distinct] = np.arange(len(distinct))
    return np.asarray(rows[place[numbers]])


@dataclass(frozen=True)
class CalibratedLinks:
    """Links as a calibration measured them; every rank has its own link to all others.

    An operation that was not calibrated takes what its nearest relative's α and B say.
    """

    model: LinkModel
    described: str
    ranks_per_node: int = 1

    def time(self, op: str, ranks: Ints, near: Ints, size_bytes: Floats) -> Floats:
        """Return seconds of an operation for each group."""
        answer = self._answer(op)
        asked = np.stack([ranks.astype(float), np.maximum(1.0, np.rint(size_bytes))])
        distinct, place = np.unique(asked, axis=1, return_inverse=True)
        times = np.array([answer(int(n), int(size)) for n, size in distinct.T])
        return np.asarray(times[place.reshape(-1)])

    def _answer(self, op: str) -> Callable[[int, int], float]:
        used, missing = op, None
        while True:
            try:
                self.model.time(used, 2, 1)
                break
            except NoFit as reason:
                if used not in STANDS_FOR:
                    raise missing or reason from reason
                missing, used = missing or reason, STANDS_FOR[used]
        if used == op:
            return lambda n, size: self.model.time(op, n, size).time_s if n > 1 else 0.0

        def by_law(n: int, size: int) -> float:
            if n < 2:
                return 0.0
            known = law(used, ALGORITHMS.get(used, "ring"), n)
            wanted = law(op, ALGORITHMS.get(op, "ring"), n)
            scaled = max(1, round(size * wanted.bytes_factor / known.bytes_factor))
            return self.model.time(used, n, scaled).time_s

        return by_law


LATER = "nominal links: data sheets' bandwidths, latencies of NCCL's tuning table"


def links_by_name(text: str, ranks_per_node: int) -> NominalLinks:
    """Return links such as ``nvlink4+infiniband-ndr``: inside a node, and one for each rank across.

    One name alone: all ranks have that link to all others.

    Raises:
        UsageError: There is no such link, or there are more than two names.
    """
    names = [part.strip() for part in text.split("+")]
    for name in names:
        if name not in LINKS:
            raise unknown_name("link", name, LINKS)
    if len(names) > 2:
        raise UsageError(
            f"--link {text}: give one name, or two joined by +: the link inside a node and the one "
            "between nodes, for example nvlink4+infiniband-ndr."
        )
    inside, across = LINKS[names[0]], LINKS[names[-1]]
    size = ranks_per_node if len(names) > 1 else 1
    topology = Topology(ranks_per_node=size, inside=inside, across=across, links_across=size)
    return NominalLinks(topology, f"{text}, {size} ranks a node; {LATER}")
