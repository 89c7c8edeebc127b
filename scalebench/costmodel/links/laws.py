"""The laws of collectives: what an algorithm costs with N ranks, by the α–β model.

``time = latency_steps(N)·α + bytes_factor(N)·D/B`` with α the latency of one message in seconds,
B the bandwidth of one rank's link in bytes per second, one direction, and D the full size in
bytes as nccl-tests counts it in its column *size*: for all-gather and reduce-scatter the total
over the ranks, for all-to-all what one rank hands over in all. The arithmetic of reductions is
not counted. Source of the model: Hockney 1994.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from scalebench.errors import UsageError, unknown_name


class Terms(NamedTuple):
    """What multiplies α and D/B in a law.

    Attributes:
        latency_steps: Messages one after another; multiplies α.
        bytes_factor: Bytes through the busiest link for each byte of D; multiplies D/B.
    """

    latency_steps: float
    bytes_factor: float

    def time_s(self, size_bytes: float, alpha_s: float, bandwidth_byte_per_s: float) -> float:
        """Return ``latency_steps·α + bytes_factor·D/B``, seconds."""
        return self.latency_steps * alpha_s + self.bytes_factor * size_bytes / bandwidth_byte_per_s


def ring_all_reduce(n: int) -> Terms:
    """``2(N−1)·α + 2(N−1)/N·D/B``: reduce-scatter, then all-gather around a ring.

    Source: Patarasuk & Yuan 2009, who show the bandwidth term to be the least possible.
    """
    return Terms(2 * (n - 1), 2 * (n - 1) / n)


def halving_doubling_all_reduce(n: int) -> Terms:
    """N a power of two: ``2·log2(N)·α + 2(N−1)/N·D/B``.

    Any other N is folded to P, the next power of two below: N−P ranks first hand their data to a
    partner and get the result from it in the end, ``+ 2·(α + D/B)``, and P ranks do the above.
    Source: Rabenseifner 2004; Thakur et al. 2005.
    """
    steps = math.floor(math.log2(n))
    power = 2**steps
    fold = 0 if power == n else 2
    return Terms(2 * steps + fold, 2 * (power - 1) / power + fold)


def binomial_tree_all_reduce(n: int) -> Terms:
    """``2·⌈log2 N⌉·(α + D/B)``: reduce to a root and broadcast from it, not pipelined.

    Source: Thakur et al. 2005 (binomial tree, once up and once down).
    """
    steps = 2 * math.ceil(math.log2(n))
    return Terms(steps, steps)


def double_binary_tree_all_reduce(n: int) -> Terms:
    """``≈ 2·log2(N)·α + 2·D/B``: two complementary trees, each with half the data, pipelined.

    The blocks are taken as small enough for the pipeline's filling to be all latency.
    Source: Sanders, Speck & Träff 2009.
    """
    return Terms(2 * math.log2(n), 2 if n > 1 else 0)


def parameter_server_all_reduce(n: int) -> Terms:
    """``2(N−1)·D/B``: one of the ranks is the server and its link the bottleneck.

    All others push D and pull D through it. The bound has no latency term.
    Source: Patarasuk & Yuan 2009 (what a single root has to move).
    """
    return Terms(0, 2 * (n - 1))


def gather_broadcast_all_reduce(n: int) -> Terms:
    """``2(N−1)·(α + D/B)``: everybody's D to a root, one by one, and the result back likewise.

    Source: Hockney 1994, once for each message.
    """
    return Terms(2 * (n - 1), 2 * (n - 1))


def ring_gather(n: int) -> Terms:
    """``(N−1)·α + (N−1)/N·D/B``: all-gather, or reduce-scatter, around a ring.

    Source: Thakur et al. 2005.
    """
    return Terms(n - 1, (n - 1) / n)


def doubling_gather(n: int) -> Terms:
    """``log2(N)·α + (N−1)/N·D/B``: recursive doubling (all-gather), halving (reduce-scatter).

    Source: Thakur et al. 2005.

    Raises:
        ValueError: N is no power of two; the paper gives other algorithms for those.
    """
    if n & (n - 1):
        raise ValueError(f"recursive doubling and halving need a power of two, not {n} ranks")
    return Terms(math.log2(n), (n - 1) / n)


def pairwise_all_to_all(n: int) -> Terms:
    """``(N−1)·α + (N−1)/N·D/B``: each rank exchanges with every other one in turn.

    Source: Thakur et al. 2005 (pairwise exchange).
    """
    return Terms(n - 1, (n - 1) / n)


def tree(n: int) -> Terms:
    """``⌈log2 N⌉·(α + D/B)``: broadcast down, or reduce up, a binomial tree.

    Source: Thakur et al. 2005.
    """
    steps = math.ceil(math.log2(n))
    return Terms(steps, steps)


def pipelined_ring(n: int) -> Terms:
    """``(N−1)·α + D/B``: down a chain in small pieces, each passed on while the next arrives.

    The last rank gets its first piece after N−1 messages and the rest at the link's rate, so the
    bytes do not grow with N. The only algorithm that NCCL has for broadcast and reduce
    (``src/graph/tuning.cc``). Source: Patarasuk, Faraj & Yuan 2006, "Pipelined broadcast on
    Ethernet switched clusters".
    """
    return Terms(n - 1, 1) if n > 1 else Terms(0, 0)


def point_to_point(n: int) -> Terms:
    """``α + D/B``: one message from one rank to another, whatever N. Source: Hockney 1994."""
    return Terms(1, 1) if n > 1 else Terms(0, 0)


def ring_send_recv(n: int) -> Terms:
    """``α + D/B``: every rank sends D to the next and receives D from the one before, at once.

    The pattern of nccl-tests' sendrecv; the links carry both directions at full rate.
    Source: Hockney 1994.
    """
    return point_to_point(n)


def hierarchical_all_reduce(ranks_per_node: int, num_nodes: int) -> tuple[Terms, Terms]:
    """Reduce-scatter inside each node, ring all-reduce of D/g across nodes, all-gather inside.

    ``2·((g−1)·α_i + (g−1)/g·D/B_i) + 2(M−1)·α_e + 2(M−1)/M·(D/g)/B_e`` with g ranks on each of
    M nodes. B_e is one rank's: a link that g ranks share gives each a g-th part of its bandwidth.
    Source: the ring's laws above, applied twice (Patarasuk & Yuan 2009; Thakur et al. 2005).

    Returns:
        The terms inside a node, with α and B of the links there, and those across nodes, where D is
        still the full size. Their times add up.
    """
    gather, ring = ring_gather(ranks_per_node), ring_all_reduce(num_nodes)
    inside = Terms(2 * gather.latency_steps, 2 * gather.bytes_factor)
    return inside, Terms(ring.latency_steps, ring.bytes_factor / ranks_per_node)


Law = Callable[[int], Terms]

LAWS: Mapping[tuple[str, str], Law] = {
    ("all_reduce", "ring"): ring_all_reduce,
    ("all_reduce", "halving-doubling"): halving_doubling_all_reduce,
    ("all_reduce", "binomial tree"): binomial_tree_all_reduce,
    ("all_reduce", "double binary tree"): double_binary_tree_all_reduce,
    ("all_reduce", "parameter server"): parameter_server_all_reduce,
    ("all_reduce", "gather-broadcast"): gather_broadcast_all_reduce,
    ("all_gather", "ring"): ring_gather,
    ("all_gather", "recursive doubling"): doubling_gather,
    ("reduce_scatter", "ring"): ring_gather,
    ("reduce_scatter", "recursive halving"): doubling_gather,
    ("all_to_all", "pairwise"): pairwise_all_to_all,
    ("broadcast", "tree"): tree,
    ("broadcast", "ring"): pipelined_ring,
    ("reduce", "tree"): tree,
    ("reduce", "ring"): pipelined_ring,
    ("send_recv", "point-to-point"): point_to_point,
    ("send_recv", "ring"): ring_send_recv,
    ("send_recv_ring", "ring"): ring_send_recv,
}
"""(operation, algorithm) → law of N ≥ 1 ranks; the first of an operation is its default."""

OPERATIONS = tuple(dict.fromkeys(op for op, _ in LAWS))
"""The operations that have a law."""


_NCCL_LAWS: Mapping[str, str] = {"broadcast": "ring", "reduce": "ring"}


def usual_laws(backend: str | None) -> Mapping[str, str]:
    """Return operation → algorithm of a backend, where it is not the operation's default."""
    return _NCCL_LAWS if backend in ("nccl", "nccl-legacy") else {}


def algorithms(op: str) -> tuple[str, ...]:
    """Return the algorithms that have a law for an operation, the default first.

    Raises:
        UsageError: No such operation.
    """
    if op not in OPERATIONS:
        raise unknown_name("operation with a law", op, OPERATIONS)
    return tuple(algorithm for other, algorithm in LAWS if other == op)


def law_terms(op: str, algorithm: str, world_size: int) -> Terms:
    """Return what multiplies α and D/B.

    Raises:
        UsageError: No such operation, no such algorithm for it, or fewer than one rank.
        ValueError: The law does not hold for this number of ranks.
    """
    if algorithm not in algorithms(op):
        raise unknown_name(f"law of {op}", algorithm, algorithms(op))
    _require_ranks(world_size)
    return LAWS[op, algorithm](world_size)


_BUS_FACTORS: Mapping[str, Law] = {
    "all_reduce": ring_all_reduce,
    "all_gather": ring_gather,
    "reduce_scatter": ring_gather,
    "all_to_all": pairwise_all_to_all,
}


def busbw_factor(op: str, world_size: int) -> float:
    """Return what turns algorithm bandwidth (D over time) into bus bandwidth.

    all-reduce ``2(N−1)/N``; all-gather, reduce-scatter, all-to-all ``(N−1)/N``; broadcast,
    reduce, send/recv 1: the least that the busiest link carries, so that bus bandwidth can be
    compared with the link's whatever N and algorithm. Source: nccl-tests, PERFORMANCE.md.

    Raises:
        UsageError: No such operation, or fewer than one rank.
    """
    algorithms(op)
    _require_ranks(world_size)
    return _BUS_FACTORS[op](world_size).bytes_factor if op in _BUS_FACTORS else 1.0


def _require_ranks(world_size: int) -> None:
    if world_size < 1:
        raise UsageError(f"A collective of {world_size} ranks does not exist: give 1 or more.")
