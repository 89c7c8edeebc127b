"""Memory in which gradients and parameters wait between a worker's device and its servers.

Servers are on the CPU, and gloo sends from the CPU's memory. A GPU copies to and from pinned memory
by itself, without the driver's own copy in between. So a worker on a GPU has pinned buffers for
what it pushes and pulls; a worker on the CPU has usual ones.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

Empty = Callable[..., torch.Tensor]


def host_vector(
    num_elements: int,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    empty: Empty = torch.empty,
) -> torch.Tensor:
    """Return memory of the CPU for a worker on a device, shape [elements]; pinned for a GPU.

    Args:
        num_elements: Its size.
        device: Of the worker.
        dtype: Of its elements.
        empty: Makes it; a test gives another.
    """
    return empty(num_elements, dtype=dtype, pin_memory=device.type == "cuda")


def wait_for_copies(device: torch.device) -> None:
    """Wait until what the device was told to copy is there."""
    torch.cuda.current_stream(device).synchronize()


class Staging:
    """A worker's messages: a gradient's part for each server, and each server's answer.

    The last element of a message says what it is; see `serving.py`.

    Attributes:
        pushes: Of each server, shape [K + 1].
        pulls: Of each server, shape [K + 1].

    Args:
        sizes: K of each server.
        device: Of the worker.
        empty: Makes memory; a test gives another.
        wait: Waits for the device's copies; a test gives another.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        device: torch.device,
        empty: Empty = torch.empty,
        wait: Callable[[torch.device], Any] = wait_for_copies,
    ) -> None:
        self.device, self._empty, self._wait = device, empty, wait
        self.on_gpu = device.type == "cuda"
        self.pushes = [host_vector(size + 1, device, empty=empty) for size in sizes]
        self.pulls = [host_vector(size + 1, device, empty=empty) for size in sizes]

    def stage(self, gradient: torch.Tensor, kind: float) -> None:
        """Write a gradient, shape [Ψ] on the device, into the messages; they can be sent then.

        The wait also ends the copies of the last pull, so that its buffers are free again.
        """
        sizes = [len(message) - 1 for message in self.pushes]
        for message, part in zip(self.pushes, gradient.split(sizes), strict=True):
            message[:-1].copy_(part, non_blocking=self.on_gpu)
            message[-1] = kind
        if self.on_gpu:
            self._wait(self.device)

    def parameters(self) -> torch.Tensor:
        """Return what was pulled, shape [Ψ] on the device, in memory of its own."""
        parts = [message[:-1] for message in self.pulls]
        if not self.on_gpu:
            return torch.cat(parts)
        pulled = self._empty(sum(len(part) for part in parts), device=self.device)
        for place, part in zip(pulled.split([len(p) for p in parts]), parts, strict=True):
            place.copy_(part, non_blocking=True)
        return pulled
