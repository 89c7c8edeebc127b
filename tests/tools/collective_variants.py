"""Every all-reduce with the options that change what it does, for any number of ranks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from scalebench.worker import collectives
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
    "ring": Variant(collectives.ring),
    "ring, both ways": Variant(collectives.ring, lambda _: {"both_ways": True}),
    "halving-doubling": Variant(collectives.halving_doubling),
    "tree": Variant(collectives.tree),
    "tree, binomial": Variant(collectives.tree, lambda _: {"shape": "binomial"}),
    "double-tree": Variant(collectives.double_tree),
    "hierarchical, pairs": Variant(
        collectives.hierarchical, lambda n: {"hosts": tuple(rank // 2 for rank in range(n))}
    ),
    "hierarchical, first host larger": Variant(
        collectives.hierarchical,
        lambda n: {"hosts": tuple("ab"[rank > n // 2] for rank in range(n))},
    ),
    "hierarchical, ranks dealt out": Variant(
        collectives.hierarchical, lambda n: {"hosts": tuple(rank % 3 for rank in range(n))}
    ),
    "hierarchical, one host": Variant(collectives.hierarchical, lambda n: {"hosts": (0,) * n}),
    "gather-broadcast": Variant(collectives.gather_broadcast),
    "parameter-server": Variant(collectives.parameter_server),
    "parameter-server, last rank, overlap": Variant(
        collectives.parameter_server, lambda n: {"server": n - 1, "overlap": True}
    ),
}
