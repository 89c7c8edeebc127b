"""Inject into this process what the self-test asks for, around the code that measures.

What concerns the training is done by the workload, see `workloads.faulty`, which asks here.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from scalebench.spec.probes import InjectedFault

MUCH_LARGER = 10

_injected: list[InjectedFault] = []


def inject(what: InjectedFault, rank: int) -> None:
    """Do so, for the rest of this process's life.

    Args:
        what: What to inject.
        rank: Of this process.
    """
    _injected.append(what)
    if what.kind == "wrong_elements" and rank == what.rank:
        _spoil_all_reduce(what.count)
    elif what.kind == "false_clock" and rank == what.rank:
        _put_clock_ahead(round(what.seconds * 1e9))


def injected_fault() -> InjectedFault:
    """Return what was injected into this process."""
    return _injected[-1]


@contextmanager
def written_down(what: InjectedFault, rank: int) -> Iterator[None]:
    """Note how long the block took, in the rank's file."""
    began = time.perf_counter()
    yield
    with open(f"{what.log}.rank{rank}", "a") as log:
        log.write(f"{time.perf_counter() - began}\n")


def _spoil_all_reduce(count: int) -> None:
    """Change ``count`` elements of the first result that is much larger than that."""
    original = dist.all_reduce
    seen: list[int] = []

    def spoiled(tensor: torch.Tensor, *arguments: Any, **settings: Any) -> Any:
        work = original(tensor, *arguments, **settings)
        if not seen and settings.get("group") is None and tensor.numel() > MUCH_LARGER * count:
            seen.append(1)
            tensor[::MUCH_LARGER][:count] += 1
        return work

    dist.all_reduce = spoiled


def _put_clock_ahead(by_ns: int) -> None:
    original = time.monotonic_ns
    time.monotonic_ns = lambda: original() + by_ns
