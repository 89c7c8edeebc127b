"""Whether the ranks of a script speak to one another, and what of it cannot be measured."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import torch

MESSAGES = ("send", "recv", "recv_anysource")
"""Between two ranks: NCCL leaves them out of its own count."""

OPERATIONS = (
    *("allreduce", "allreduce_coalesced", "allgather", "_allgather_base", "reduce", "broadcast"),
    *("reduce_scatter", "_reduce_scatter_base", "alltoall", "alltoall_base", "gather", "scatter"),
    *("all_gather_single", "reduce_scatter_single", "all_to_all_single"),  # from torch 2.13 on
    "barrier",
    *MESSAGES,
)

MONITORED = "monitored_barrier"
"""Such a call sends each other rank a message and takes one, but no gradients."""

OF_PARTS = ("alltoall", "alltoall_base", "all_to_all_single")


class ScriptProblem(Exception):
    """The script cannot be measured as it is; the text says why, and what to change."""


class NoStep(ScriptProblem):
    """The script has ended by itself, without a step; the text says what it may need.

    At another number of ranks it may train.
    """


OLDEST_TORCH = (2, 4)

TOO_OLD = "torch {version} is too old to watch a script: 2.4 or newer is needed"

NO_GROUP = (
    "the processes train separately: the script made no process group, so each rank did the whole "
    "job alone. Call torch.distributed.init_process_group() and wrap the model, for example in "
    "DistributedDataParallel; RANK, LOCAL_RANK and WORLD_SIZE are set as torchrun sets them"
)

SMALL_GROUP = (
    "the processes train separately: the script's process group has {size} of the {ranks} ranks. "
    "Have it take RANK and WORLD_SIZE from the environment; they are set as torchrun sets them"
)

NO_EXCHANGE = (
    "the processes train separately: they made a process group and exchanged {what} in {steps} "
    "steps. {model} is not wrapped, or not called through its wrapper: wrap it, for example in "
    "DistributedDataParallel, and call the wrapped model. If the script exchanges something only "
    "every so many steps, have more of them measured with --steps"
)

WRONG_DEVICE = (
    "the script trains on a GPU, and the run was started with --device cpu. Leave out --device cpu"
)

SPAWNS = (
    "the script starts its own ranks with multiprocessing. Each rank is already a process here: "
    "call the function that they run directly, with int(os.environ['RANK']) as its rank and "
    "int(os.environ['WORLD_SIZE']) as the number of processes"
)

STARTS_RANKS = (
    "the script starts {launcher}, which starts ranks as well, and scalebench starts the ranks "
    "already: give the training script itself, for example scalebench run -- {script}"
)

NO_STEP = "the script ended without a training step"

IF_IT_TRAINED = "If it trained, call scalebench.step() after each step"

NO_OPTIMIZER = (
    "the script made {passes} backward passes and no training step that scalebench sees: after "
    "none of them an optimizer of torch was called. If it updates its parameters by hand or with "
    "an optimizer of another kind, call scalebench.step() after each update"
)

ONLY_OTHERS = (
    "a rank made no training step, and another made all that are measured: let every rank call its "
    "optimizer, or their models drift apart"
)

OWN_PROCESSES = (
    "It has started processes, which are not watched. If they train: each rank is already a "
    "process here, so call their function directly, with int(os.environ['RANK']) as the rank"
)


def check_torch(version: str) -> None:
    """Raise ScriptProblem if a version of torch, such as ``2.13.0+cpu``, is too old."""
    numbers = version.split("+")[0].split(".")[:2]
    if all(n.isdigit() for n in numbers) and tuple(map(int, numbers)) < OLDEST_TORCH:
        raise ScriptProblem(TOO_OLD.format(version=version))


class Traffic(NamedTuple):
    """What a rank has asked its process groups for.

    Attributes:
        called: Those that Python code asked for, without messages between two ranks; DDP and
            others ask in C++.
        called_bytes: What was handed to these.
    """

    operations: int
    called: int
    called_bytes: int


class TrafficWatch:
    """Counts the operations of all process groups.

    Attributes:
        sends_parts: Whether each rank sends every other another part, as experts and the parts of
            an embedding do, of which each rank has its own.
        reduced: Address of each tensor that Python code had all-reduced since the last backward
            pass began → its group; None: no longer noted.
    """

    def __init__(self) -> None:
        self.sends_parts = False
        self.reduced: dict[int, Any] | None = {}
        self._called = self._messages = self._bytes = 0

    def install(self, put: Callable[[Any, str, Any], None]) -> None:
        """Have the methods through which Python asks for an operation counted.

        Args:
            put: Replaces an attribute of an object; see `hooks.Hooks.put`.
        """
        group: Any = getattr(torch.distributed, "ProcessGroup", None)
        for name in OPERATIONS:
            if hasattr(group, name):
                put(group, name, self._counting(getattr(group, name), name))
        if hasattr(group, MONITORED):
            put(group, MONITORED, self._counting_parts(getattr(group, MONITORED)))

    def _counting(self, operation: Any, name: str) -> Any:
        is_message, sends_parts = name in MESSAGES, name in OF_PARTS
        reduces = name.startswith("allreduce")

        @functools.wraps(operation)
        def counted(group: Any, *args: Any, **kwargs: Any) -> Any:
            self._called += not is_message
            self._messages += is_message
            self.sends_parts |= sends_parts
            self._bytes += _bytes_of(args[0] if args else None)
            if reduces and self.reduced is not None and args:
                self.reduced |= dict.fromkeys(_addresses(args[0]), group)
            return operation(group, *args, **kwargs)

        return counted

    def _counting_parts(self, operation: Any) -> Any:
        @functools.wraps(operation)
        def counted(group: Any, *args: Any, **kwargs: Any) -> Any:
            before = self.so_far()
            try:
                return operation(group, *args, **kwargs)
            finally:
                now = self.so_far()
                if now is not None and before is not None:
                    self._called += now.operations - before.operations

        return counted

    def so_far(self) -> Traffic | None:
        """Return the traffic so far; None: there is no group, or one that does not count."""
        distributed: Any = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return None
        try:
            groups = list(distributed.distributed_c10d._world.pg_map)
            counts = [
                int(backend._get_sequence_number_for_group())
                for group in groups
                for backend in _backends_of(group)
            ]
        except (AttributeError, RuntimeError, TypeError, ValueError):  # of a version that differs
            return None
        return Traffic(sum(counts) + self._messages, self._called, self._bytes)


def _backends_of(group: Any) -> list[Any]:
    """Return the backends of a group, one for several devices once."""
    found = [group._get_backend(device) for device in group._device_types]
    return [one for i, one in enumerate(found) if all(one is not other for other in found[:i])]


def _addresses(value: Any) -> list[int]:
    of_tensors = value if isinstance(value, (list, tuple)) else [value]
    with suppress(RuntimeError):  # a tensor that has no memory
        return [one.data_ptr() for one in of_tensors if isinstance(one, torch.Tensor)]
    return []


def _bytes_of(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(_bytes_of(one) for one in value) if isinstance(value, (list, tuple)) else 0
