"""Every all-reduce with the options that change what it does, for any number of ranks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from scalebench.worker.collectives import ALL_REDUCES
from scalebench.worker.collectives.execute import Send


@dataclass(frozen=True)
class Variant:
    """An algorithm by its name, and its options as a function of the world size."""

    algorithm: str
    options: Callable[[int], dict[str, Any]] = field(default=lambda _: {})

    @property
    def all_reduce(self) -> Any:
        return ALL_REDUCES[self.algorithm]

    def schedules(self, num_ranks: int, length: int, segment: int) -> list[Any]:
        schedule = self.all_reduce.keywords["schedule"]
        return [
            list(schedule(rank, num_ranks, length, segment, **self.options(num_ranks)))
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
    "ring": Variant("ring"),
    "ring, both ways": Variant("ring", lambda _: {"both_ways": True}),
    "halving-doubling": Variant("halving-doubling"),
    "tree": Variant("tree"),
    "tree, binomial": Variant("tree", lambda _: {"shape": "binomial"}),
    "double-tree": Variant("double-tree"),
    "hierarchical, pairs": Variant(
        "hierarchical",
        lambda n: {"hosts": tuple(rank // 2 for rank in range(n))},
    ),
    "hierarchical, first host larger": Variant(
        "hierarchical",
        lambda n: {"hosts": tuple("ab"[rank > n // 2] for rank in range(n))},
    ),
    "hierarchical, ranks dealt out": Variant(
        "hierarchical", lambda n: {"hosts": tuple(rank % 3 for rank in range(n))}
    ),
    "hierarchical, one host": Variant("hierarchical", lambda n: {"hosts": (0,) * n}),
    "gather-broadcast": Variant("gather-broadcast"),
    "parameter-server": Variant("parameter-server"),
    "parameter-server, last rank, overlap": Variant(
        "parameter-server", lambda n: {"server": n - 1, "overlap": True}
    ),
}
