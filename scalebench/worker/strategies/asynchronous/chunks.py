"""Pieces of the parameters that travel by themselves, and which of them is sent next.

The backward pass makes the gradients of the last layers first, and the next forward pass needs the
parameters of the first layers first. So a link that sends in the order of the backward pass sends
last what is needed first. Priority scheduling (P3, Jayarajan et al. 2019; ByteScheduler, Peng et
al. 2019) sends what is needed first, and in chunks, so that it does not wait behind a large tensor.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Chunk:
    """A piece of one parameter.

    Attributes:
        number: Among all chunks.
        parameter: Of which parameter of the module it is a piece.
        server: Which rank keeps it.
        start: Its first element in the vector of all parameters.
        stop: One after its last.
    """

    number: int
    parameter: int
    server: int
    start: int
    stop: int

    @property
    def part(self) -> slice:
        """Where it lies in the vector of all parameters."""
        return slice(self.start, self.stop)


def cut(sizes: Sequence[int], largest: int | None, num_servers: int) -> list[Chunk]:
    """Cut parameters into chunks, and give each to the server that has the fewest elements yet.

    Args:
        sizes: Elements of each parameter, in the order of the vector of all parameters.
        largest: Elements of a chunk at most; None: every parameter is one.
        num_servers: Ranks 0 to so many serve.
    """
    chunks: list[Chunk] = []
    load = [0] * num_servers
    first = 0
    for parameter, size in enumerate(sizes):
        pieces = 1 if largest is None else -(-size // largest)
        ends = [first + size * piece // pieces for piece in range(pieces + 1)]
        for start, stop in pairwise(ends):
            server = load.index(min(load))
            load[server] += stop - start
            chunks.append(Chunk(len(chunks), parameter, server, start, stop))
        first += size
    return chunks


class Waiting:
    """The chunks that wait for the link.

    Attributes:
        num_overtakes: How often one was sent before another that waited longer.

    Args:
        by_need: Whether the one that is needed first goes first; else the one that waits longest.
    """

    def __init__(self, by_need: bool) -> None:
        self.by_need = by_need
        self.num_overtakes = 0
        self._heap: list[tuple[int, int, int]] = []
        self._num_put = 0
        self._there: set[int] = set()

    def put(self, chunk: int, need: int) -> None:
        """Add a chunk.

        Args:
            chunk: Its number.
            need: The smaller, the sooner the next forward pass needs it. Chunks of the same need
                go in the order in which they were put here.
        """
        heapq.heappush(self._heap, (need if self.by_need else 0, self._num_put, chunk))
        self._there.add(self._num_put)
        self._num_put += 1

    def pop(self) -> int:
        """Remove the chunk that is sent next, and return its number."""
        _, arrival, chunk = heapq.heappop(self._heap)
        self.num_overtakes += arrival > min(self._there)
        self._there.remove(arrival)
        return chunk

    def __len__(self) -> int:
        return len(self._heap)


def need_of_parameters(num_parameters: int, fired: Sequence[Sequence[int]]) -> list[int]:
    """Return how soon a forward pass needs each parameter, smallest first.

    Args:
        num_parameters: Of the module.
        fired: The parameters of each layer, in the order in which a forward pass came to them.

    Returns:
        Of each parameter, the place of its first layer. Those that no layer announced may be needed
        at any time: they come first, with -1.
    """
    needs = [-1] * num_parameters
    for place, parameters in enumerate(fired):
        for parameter in parameters:
            if needs[parameter] < 0:
                needs[parameter] = place
    return needs
