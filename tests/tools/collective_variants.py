"""Every all-reduce with the options that change what it does, for any number of ranks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from scalebench.worker.collectives import (
    double_tree,
    gather_broadcast,
    halving_doubling,
    hierarchical,
    parameter_server,
    ring,
    tree,
)


@dataclass(frozen=True)
class Variant:
    """A file of `scalebench.worker.collectives` and options as a function of the world size."""

    module: ModuleType
    options: Callable[[int], dict[str, Any]] = field(default=lambda _: {})

    def schedules(self, num_ranks: int, length: int, segment: int) -> list[Any]:
        """The schedule of every rank."""
        return [
            list(self.module.schedule(rank, num_ranks, length, segment, **self.options(num_ranks)))
            for rank in range(num_ranks)
        ]

    def sent(self, num_ranks: int, length: int) -> list[int]:
        """The law: elements sent by every rank."""
        options = self.options(num_ranks)
        return [self.module.sent(rank, num_ranks, length, **options) for rank in range(num_ranks)]


VARIANTS = {
    "ring": Variant(ring),
    "ring, both ways": Variant(ring, lambda _: {"both_ways": True}),
    "halving-doubling": Variant(halving_doubling),
    "tree": Variant(tree),
    "tree, binomial": Variant(tree, lambda _: {"shape": "binomial"}),
    "double-tree": Variant(double_tree),
    "hierarchical, pairs": Variant(
        hierarchical, lambda n: {"hosts": tuple(rank // 2 for rank in range(n))}
    ),
    "hierarchical, first host larger": Variant(
        hierarchical, lambda n: {"hosts": tuple("ab"[rank > n // 2] for rank in range(n))}
    ),
    "hierarchical, ranks dealt out": Variant(
        hierarchical, lambda n: {"hosts": tuple(rank % 3 for rank in range(n))}
    ),
    "hierarchical, one host": Variant(hierarchical, lambda n: {"hosts": (0,) * n}),
    "gather-broadcast": Variant(gather_broadcast),
    "parameter-server": Variant(parameter_server),
    "parameter-server, last rank, overlap": Variant(
        parameter_server, lambda n: {"server": n - 1, "overlap": True}
    ),
}
