"""Norms of the gradients that the ranks have in a step anyway, before and after they are averaged.

DDP adds a rank's gradients up in ``.grad`` and averages them there as soon as they are all in. A
hook on a parameter runs between the two. So the noise of gradients is known from a step itself,
without another backward pass (McCandlish et al. 2018, appendix A.1).
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch


class LocalSquare:
    """The squared norm of this rank's own gradient in a step."""

    def __init__(self) -> None:
        self._of_parameters: dict[int, torch.Tensor] = {}

    def note(self, number: int, parameter: torch.Tensor) -> None:
        """Take a parameter's gradient as it is now; what was noted of it before is replaced."""
        assert parameter.grad is not None, "it was just accumulated"
        self._of_parameters[number] = parameter.grad.detach().float().square().sum()

    @property
    def value(self) -> float:
        """The sum over all parameters that have a gradient."""
        found = list(self._of_parameters.values())
        return float(torch.stack(found).sum()) if found else 0.0


@contextmanager
def local_square(parameters: Iterable[torch.nn.Parameter]) -> Iterator[LocalSquare]:
    """Note the norm of the gradient that backward passes in the block leave, before any exchange.

    Where several microbatches accumulate, it is that of their sum.
    """
    found = LocalSquare()
    hooks = [
        parameter.register_post_accumulate_grad_hook(partial(found.note, number))
        for number, parameter in enumerate(parameters)
        if parameter.requires_grad
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
