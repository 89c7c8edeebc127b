"""The optimizers and the modules that distribute others, known since the script has made them."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from scalebench.worker.attach.facts import bases_of
from scalebench.worker.attach.imports import after_import_of

WRAPPERS = ("DistributedDataParallel", "DeepSpeedEngine", "FullyShardedDataParallel", "FSDPModule")

MAKERS = (
    ("torch.optim.optimizer", "Optimizer", "__init__"),
    ("torch.nn.parallel.distributed", "DistributedDataParallel", "__init__"),
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel", "__init__"),
    ("torch.distributed.fsdp._fully_shard._fsdp_state", "FSDPState", "init"),
    ("torch.distributed._composable.fsdp._fsdp_state", "FSDPState", "init"),  # before torch 2.6
    ("deepspeed.runtime.engine", "DeepSpeedEngine", "__init__"),
)
"""Module, class and method that make one. FSDP2 gives a module another class: it is handed over."""


class Made:
    """Weak references to all of them, in their order."""

    def __init__(self) -> None:
        self._all: list[Any] = []

    def watch(self, put: Callable[[Any, str, Any], None]) -> None:
        """Note what is made from now on; ``put`` replaces a method of a class."""
        for module, owner, method in MAKERS:
            after_import_of(module, functools.partial(self._watch_one, put, module, owner, method))

    def _watch_one(self, put: Any, module: str, owner: str, method: str) -> None:
        kind = getattr(sys.modules[module], owner, None)
        original = getattr(kind, method, None)
        if original is None:
            return

        @functools.wraps(original)
        def make(*args: Any, **kwargs: Any) -> Any:
            answer = original(*args, **kwargs)
            one = args[0] if method == "__init__" else args[1]
            self._all += map(weakref.ref, one if isinstance(one, tuple) else (one,))
            return answer

        put(kind, method, make)

    def optimizers(self) -> list[Any]:
        """Return weak references to the optimizers that exist, called so far or not."""
        return [weakref.ref(one) for one in self._alive() if isinstance(one, torch.optim.Optimizer)]

    def wrappers(self) -> list[Any]:
        """Return the modules that distribute others over ranks."""
        return [one for one in self._alive() if bases_of(type(one)).intersection(WRAPPERS)]

    def _alive(self) -> Iterator[Any]:
        known = {id(one): one for of in self._all if (one := of()) is not None}
        return iter(known.values())
