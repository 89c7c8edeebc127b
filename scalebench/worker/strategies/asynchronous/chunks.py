"""Pieces of the parameters that travel by themselves: who keeps them, and which is sent next.

Most optimizers treat every element by itself, so a server may have any part of a layer. LARS and
LAMB need the norm of a whole layer, and its shape; a part of it gives another step. Layers are kept
whole for every optimizer that is not known to go element by element.

The backward pass makes the gradients of the last layers first, and the next forward pass needs the
parameters of the first layers first. So a link that sends in the order of the backward pass sends
last what is needed first. Priority scheduling (P3, Jayarajan et al. 2019; ByteScheduler, Peng et
al. 2019) sends what is needed first, and in chunks, so that it does not wait behind a large tensor.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from scalebench.worker.process.failure import Unsupported
from scalebench.worker.strategies.execution import optimizer_kind

ELEMENTWISE: tuple[type[torch.optim.Optimizer], ...] = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.ASGD,
)
"""Optimizers of torch whose step of an element depends on nothing but its own gradients."""


@dataclass(frozen=True)
class Chunk:
    """A piece of the vector of all parameters.

    Attributes:
        number: Among all chunks.
        parameters: Of which parameters of the module it has elements.
        server: Which rank keeps it.
        start: Its first element in the vector of all parameters.
        stop: One after its last.
    """

    number: int
    parameters: tuple[int, ...]
    server: int
    start: int
    stop: int

    @property
    def part(self) -> slice:
        """Where it lies in the vector of all parameters."""
        return slice(self.start, self.stop)


def cut(sizes: Sequence[int], largest: int | None, num_servers: int) -> list[Chunk]:
    """Cut parameters into chunks, and give each to the server that has the fewest elements yet.

    ``sizes``: elements of each parameter, in the order of the vector of all parameters.
    ``largest``: elements of a chunk at most; None: every parameter is one.
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
            chunks.append(Chunk(len(chunks), (parameter,), server, start, stop))
        first += size
    return chunks


def one_each(
    sizes: Sequence[int], num_servers: int, whole_for: torch.optim.Optimizer | None = None
) -> list[Chunk]:
    """Give each server one chunk: as many elements as the others, or nearly so, of whole layers.

    Args:
        sizes: Elements of each parameter, in the order of the vector of all parameters.
        num_servers: Ranks 0 to so many serve.
        whole_for: An optimizer that needs layers whole: each chunk ends at the end of a layer that
            is nearest to an equal part. None: none does.

    Raises:
        Unsupported: There are more servers than layers.
    """
    ends = [sum(sizes[:number]) for number in range(len(sizes) + 1)]
    bounds = [ends[-1] * server // num_servers for server in range(num_servers + 1)]
    if whole_for is not None:
        if num_servers > len(sizes):
            raise Unsupported(
                f"{num_servers} servers are more than the {len(sizes)} tensors of the model's "
                f"parameters, which {optimizer_kind(whole_for)} needs whole; choose fewer servers"
            )
        last = 0
        for server, wanted in enumerate(bounds[1:-1], start=1):
            free = range(last + 1, len(sizes) - (num_servers - server) + 1)
            last = min(free, key=lambda number: abs(ends[number] - wanted))
            bounds[server] = ends[last]
    return [
        Chunk(
            server,
            tuple(p for p, (a, b) in enumerate(pairwise(ends)) if a < stop and b > start),
            server,
            start,
            stop,
        )
        for server, (start, stop) in enumerate(pairwise(bounds))
    ]


def layers_within(
    part: torch.Tensor, start: int, shapes: Sequence[torch.Size]
) -> list[torch.nn.Parameter]:
    """Return the whole layers of a chunk, as views of it in their shapes.

    ``part`` has shape [K] and lies between two ends of layers. ``start``: its first element in the
    vector of all parameters. ``shapes``: of all layers, in the order of that vector.
    """
    layers, first = [], 0
    for shape in shapes:
        if start <= first < start + len(part):
            own = part[first - start : first - start + shape.numel()]
            layers.append(torch.nn.Parameter(own.view(shape)))
        first += shape.numel()
    return layers


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
        self._heap: list[tuple[int, int, Any]] = []
        self._num_put = 0
        self._there: set[int] = set()

    def put(self, chunk: Any, need: int) -> None:
        """Add a chunk.

        The smaller ``need``, the sooner the next forward pass needs it. Chunks of the same need go
        in the order in which they were put here.
        """
        heapq.heappush(self._heap, (need if self.by_need else 0, self._num_put, chunk))
        self._there.add(self._num_put)
        self._num_put += 1

    def pop(self) -> Any:
        """Remove the chunk that is sent next, and return what stands for it."""
        _, arrival, chunk = heapq.heappop(self._heap)
        self.num_overtakes += arrival > min(self._there)
        self._there.remove(arrival)
        return chunk

    def __len__(self) -> int:
        return len(self._heap)


def need_of_parameters(num_parameters: int, fired: Sequence[Sequence[int]]) -> list[int]:
    """Return how soon a forward pass needs each parameter, smallest first.

    ``fired``: the parameters of each layer, in the order in which a forward pass came to them.

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
