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
from scalebench.worker.collectives.schedule import Send


@dataclass(frozen=True)
class Variant:
    """A file of `scalebench.worker.collectives` and options as a function of the world size."""

    module: ModuleType
    options: Callable[[int], dict[str, Any]] = field(default=lambda _: {})

    def schedules(self, num_ranks: int, length: int, segment: int) -> list[Any]:
        return [
            list(self.module.schedule(rank, num_ranks, length, segment, **self.options(num_ranks)))
            for rank in range(num_ranks)
        ]

    def sent(self, num_ranks: int, length: int, segment: int | None = None) -> list[int]:
        """Elements sent by every rank; uncut without a segment."""
        schedules = self.schedules(num_ranks, length, segment or max(1, length))
        return [
            sum(m.piece.length for step in schedule for m in step if isinstance(m, Send))
            for schedule in schedules
        ]


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
