"""A world that somebody else has started: its ranks, its nodes, and where they meet.

torchrun, srun, mpirun and the like start every process of a job at once and tell each its number.
scalebench then makes up each size from the first of them, node-filling first.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from scalebench.spec.base import Spec

WorldLauncher = Literal["torchrun", "srun", "mpirun", "pmi", "environment"]


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
