"""What is said of a rank's training besides its steps: memory, versions, how it is distributed."""

from __future__ import annotations

import gc
import os
import platform
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from scalebench.worker.attach.recognition import groups, layouts, trained_modules, wrappers


def allocator_retries(device: str) -> int:
    """Return how often CUDA's allocator has freed its cache and tried again so far."""
    if device != "cuda" or not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.memory_stats().get("num_alloc_retries", 0))


def memory(device: str, retries_before: int = 0) -> dict[str, Any]:
    """Return the peaks so far in bytes, under the names of `scalebench.records.rank.Memory`.

    Args:
        device: ``cpu`` or ``cuda``.
        retries_before: Those of the allocator before the first step: loading a model may have some.
    """
    found: dict[str, Any] = {"rss_bytes": _peak_rss_bytes()}
    if device == "cuda" and torch.cuda.is_initialized():
        free, total = torch.cuda.mem_get_info()
        found["allocated_bytes"] = torch.cuda.max_memory_allocated()
        found["reserved_bytes"] = torch.cuda.max_memory_reserved()
        found["device_bytes"] = total - free
        found["allocator_retries"] = allocator_retries(device) - retries_before
    return found


def _peak_rss_bytes() -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    found = [line for line in lines if line.startswith("VmHWM:")]
    return int(found[0].split()[1]) * 1024 if found else None


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
            **_scheduled(),
            "groups": groups(),
            "wrappers": found,
            **({} if found else {"modules": trained_modules(optimizers)}),
            **_device(),
        },
    }


def _scheduled() -> dict[str, Any]:
    """Return the processors of this process and its scheduling class, as far as they are told."""
    if not hasattr(os, "sched_getscheduler"):
        return {}
    names = {os.SCHED_OTHER: "default", os.SCHED_BATCH: "SCHED_BATCH"}
    found = os.sched_getscheduler(0)
    return {
        "affinity": sorted(os.sched_getaffinity(0)),
        "scheduling_class": names.get(found, str(found)),
    }


def _device() -> dict[str, Any]:
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return {"device_name": "cpu", "device_uuid": None}
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {"device_name": properties.name, "device_uuid": str(getattr(properties, "uuid", None))}


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
