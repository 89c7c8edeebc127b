"""What each server keeps: equal parts of the parameters, or whole layers.

Most optimizers treat every element by itself, so a server may have any part of a layer. LARS and
LAMB need the norm of a whole layer, and its shape; a part of it gives another step. Layers are kept
whole for every optimizer that is not known to go element by element.
"""

from collections.abc import Callable, Sequence

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

MakeOptimizer = Callable[[Sequence[torch.nn.Parameter]], torch.optim.Optimizer]


def needs_whole_layers(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether a layer's step may depend on more of it than one element."""
    return type(optimizer) not in ELEMENTWISE


def equal_bounds(num_elements: int, num_servers: int) -> list[int]:
    """Return where the part of each server begins, and the end, in the vector of all parameters."""
    return [num_elements * server // num_servers for server in range(num_servers + 1)]


def bounds_between_layers(
    sizes: Sequence[int], num_servers: int, optimizer: torch.optim.Optimizer
) -> list[int]:
    """Return bounds like `equal_bounds`, each moved to the nearest end of a layer.

    Args:
        sizes: Elements of each layer, in the order of the vector of all parameters.
        num_servers: Every one gets at least one layer.
        optimizer: That needs them whole.

    Raises:
        Unsupported: There are more servers than layers.
    """
    if num_servers > len(sizes):
        raise Unsupported(
            f"{num_servers} servers are more than the {len(sizes)} tensors of the model's "
            f"parameters, which {optimizer_kind(optimizer)} needs whole; choose fewer servers"
        )
    ends = [sum(sizes[:number]) for number in range(len(sizes) + 1)]
    bounds, last = [0], 0
    for server, wanted in enumerate(equal_bounds(ends[-1], num_servers)[1:-1], start=1):
        free = range(last + 1, len(sizes) - (num_servers - server) + 1)
        last = min(free, key=lambda number: abs(ends[number] - wanted))
        bounds.append(ends[last])
    return [*bounds, ends[-1]]


def layers_within(
    part: torch.Tensor, start: int, shapes: Sequence[torch.Size]
) -> list[torch.nn.Parameter]:
    """Return the whole layers of a server's part, as views of it in their shapes.

    Args:
        part: Shape [K]; between two ends of layers.
        start: Its first element in the vector of all parameters.
        shapes: Of all layers, in the order of that vector.
    """
    layers, first = [], 0
    for shape in shapes:
        if start <= first < start + len(part):
            own = part[first - start : first - start + shape.numel()]
            layers.append(torch.nn.Parameter(own.view(shape)))
        first += shape.numel()
    return layers
