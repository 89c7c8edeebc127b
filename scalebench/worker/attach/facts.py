"""What is said of a rank's training besides its steps: memory, versions, how it is distributed."""

from __future__ import annotations

import gc
import platform
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from scalebench.worker.attach.recognition import groups, layouts, trained_modules, wrappers
from scalebench.worker.portable import device_facts, scheduling


def optimizers() -> list[Any]:
    """Return weak references to all optimizers that exist, called so far or not."""
    kind = torch.optim.Optimizer
    return [weakref.ref(one) for one in gc.get_objects() if issubclass(type(one), kind)]


def train_others(some: Sequence[Any], called: Iterable[Any]) -> bool:
    """Tell whether some optimizers train parameters that the called ones do not.

    One that wraps another has the same. Both are weak references.
    """
    seen, others = ({id(p) for p in _parameters(known)} for known in (called, some))
    return bool(others - seen)


def _parameters(references: Iterable[Any]) -> Iterator[Any]:
    known = (reference() for reference in references)
    groups_of = (getattr(one, "param_groups", ()) for one in known if one is not None)
    return (p for groups in groups_of for group in groups for p in group["params"])


def of_training(optimizers: Sequence[Any], device: str) -> dict[str, Any]:
    """Return the number of parameters that the optimizers update, and the facts of the rank."""
    parameters = {
        id(p): int(p.numel())
        for optimizer in optimizers
        for group in optimizer.param_groups
        for p in group["params"]
    }
    found = wrappers() + layouts(optimizers)
    return {
        "num_parameters": sum(parameters.values()) or None,
        "facts": {
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "optimizer": ", ".join(dict.fromkeys(type(one).__name__ for one in optimizers)),
            "backend": _backend(device),
            **scheduling(),
            "groups": groups(),
            "wrappers": found,
            **({} if found else {"modules": trained_modules(optimizers)}),
            **device_facts(torch.cuda.is_available() and torch.cuda.is_initialized()),
        },
    }


def _backend(device: str) -> str | None:
    distributed: Any = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    by_device = str(distributed.get_backend_config())  # cpu:gloo,cuda:nccl
    return backend_for(device, by_device) or str(distributed.get_backend())


def backend_for(device: str, by_device: str) -> str | None:
    """Return the backend of a device in torch's list of them; None: it has none."""
    pairs = [pair.partition(":") for pair in by_device.split(",")]
    return next((backend for name, _, backend in pairs if name == device and backend), None)
