"""Peak memory of a rank, and what it is made of at the peak.

Allocated, reserved, device and resident are different numbers. What is allocated is divided
by owner: the allocator's events give every allocation's address, size and time, and after each
step the storages of parameters, gradients and optimizer state give the addresses that they own.
So each category is exact at the moment of the peak, and sums with the others to it. torch's own
trackers (``MemTracker``, the profiler's categories; torch 2.13) take temporaries for parameters.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.profiler import ProfilerActivity, record_function

from scalebench.records.measured.rank import Memory
from scalebench.trace.operations.names import OWN_THREAD_BACKENDS
from scalebench.worker.inspection.allocations import (
    AllocatorEvent,
    Category,
    Interval,
    Owned,
    Phase,
    Storage,
    composition_at_peak,
    frees_of,
)
from scalebench.worker.portable import quiet_profiler

LET_GO_S = 2e-3
STRETCH = "scalebench: a stretch of memory"
_Allocation = torch._C._profiler._ExtraFields_Allocation


def owned_storages(
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    device: torch.device,
    shards: Iterable[torch.Tensor] = (),
) -> Owned:
    """Return the storages of a module and its optimizer on a device, each once.

    Shared storages count once; of a distributed tensor the part that this rank holds counts.
    Parameters of the optimizer that are not the module's, such as a framework's own copy of a
    shard, are parameters, and so are ``shards``, which neither of both shows.
    """
    owned: dict[int, Storage] = {}

    def add(tensors: Any, category: Category) -> None:
        for tensor in tensors:
            storage = _storage(tensor)
            if storage is not None and storage.device == device and storage.nbytes():
                owned.setdefault(storage.data_ptr(), Storage(storage.nbytes(), category))

    add(module.parameters(), "parameters")
    add(module.buffers(), "parameters")
    add(shards, "parameters")
    add((p.grad for p in module.parameters() if p.grad is not None), "gradients")
    if optimizer is not None:
        add(_tensors(list(optimizer.state.values())), "optimizer")
        add(_tensors([group["params"] for group in optimizer.param_groups]), "parameters")
        add(_tensors(list(optimizer.state)), "parameters")  # of some, in no group between steps
    return owned


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return a tensor's storage, of a distributed tensor that of this rank's part.

    None: it has none of its own (sparse, not yet initialised); what it takes is counted with the
    activations.
    """
    to_local = getattr(tensor, "to_local", None)
    try:
        return (tensor if to_local is None else to_local()).untyped_storage()
    except (NotImplementedError, RuntimeError, ValueError):
        return None


def _tensors(nested: Any) -> Iterator[torch.Tensor]:
    if isinstance(nested, torch.Tensor):
        yield nested
    elif isinstance(nested, Mapping):
        yield from _tensors(list(nested.values()))
    elif isinstance(nested, list | tuple):
        for item in nested:
            yield from _tensors(item)


@dataclass
class MemoryWatch:
    """Which stretches of a block count, and who owned what after each.

    Attributes:
        module: Who owns the parameters, buffers and gradients from now on.
        optimizer: Who owns the optimizer's state.
        keeps_built: See `Interval`.
        shards: Returns parameters that neither module nor optimizer shows.
        memory: The peak and its categories; known after the block.
    """

    device: torch.device
    module: torch.nn.Module | None = None
    optimizer: torch.optim.Optimizer | None = None
    keeps_built: bool = False
    shards: Callable[[], Iterable[torch.Tensor]] = tuple
    memory: Memory = field(default_factory=Memory)
    _ends: list[tuple[Owned, Category, Phase, bool, bool]] = field(default_factory=list)

    @contextmanager
    def stretch(self, rest: Category, phase: Phase = "step", kept: bool = True) -> Iterator[None]:
        """Watch a stretch; outside of all stretches the peak does not count.

        Gradients are distinguished stretch by stretch: a step that frees them needs one of its own.

        What remains allocated at the end without an owner belongs to ``rest``; for the others see
        `Interval`.
        """
        with record_function(STRETCH):
            yield
        owned = {} if self.module is None else self._owned(self.module)
        self._ends.append((owned, rest, phase, kept, self.keeps_built))

    def _owned(self, module: torch.nn.Module) -> Owned:
        return owned_storages(module, self.optimizer, self.device, self.shards())

    def read(self, event_tree: list[Any]) -> None:
        """Find the peak in the profiler's events."""
        events, stretches = read_tree(event_tree, self.device)
        intervals = [
            Interval(start, end, *told)
            for (start, end), told in zip(stretches, self._ends, strict=True)
        ]
        self.memory = composition_at_peak(events, intervals)


@contextmanager
def watch_memory(device: torch.device) -> Iterator[MemoryWatch]:
    """Watch what the device's allocator hands out inside the block, by the profiler's events.

    What was allocated before is counted only if it turns out to be owned by the training. The
    same code serves CUDA, whose allocator reports the same events; it was not tried there.
    """
    watch = MemoryWatch(device)
    with (
        _operations_let_go_first(),
        quiet_profiler(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
    ):
        yield watch
    watch.read(profiler.profiler.kineto_results.experimental_event_tree())


@contextmanager
def _operations_let_go_first() -> Iterator[None]:
    """After each wait for an operation, give gloo's thread time to drop the operation's tensors.

    The thread that drops the last reference to a tensor frees it, and the profiler records only
    what the training's thread frees. Nothing is timed where memory is watched. Functional
    collectives, as DTensor's, wait for a tensor instead of an operation. A hook that goes on with
    the future of an operation, as PowerSGD's, gets one that is there: else gloo's thread would do
    the rest of its work, or not, as it happens.
    """
    wait, get_future = dist.Work.wait, dist.Work.get_future
    wait_for_tensor: Any = functional.wait_tensor

    def wait_and_let_go(work: Any, *arguments: Any, **options: Any) -> bool:
        done = wait(work, *arguments, **options)
        time.sleep(LET_GO_S)
        return done

    def wait_for_tensor_and_let_go(tensor: torch.Tensor) -> torch.Tensor:
        waited: torch.Tensor = wait_for_tensor(tensor)
        time.sleep(LET_GO_S)
        return waited

    def future_that_is_there(work: Any) -> Any:
        wait_and_let_go(work)
        return get_future(work)

    dist.Work.wait = wait_and_let_go  # type: ignore[assignment, method-assign]
    dist.Work.get_future = future_that_is_there  # type: ignore[assignment, method-assign]
    functional.wait_tensor = wait_for_tensor_and_let_go
    try:
        yield
    finally:
        dist.Work.wait = wait  # type: ignore[method-assign]
        dist.Work.get_future = get_future  # type: ignore[method-assign]
        functional.wait_tensor = wait_for_tensor


def read_tree(
    event_tree: list[Any], device: torch.device
) -> tuple[list[AllocatorEvent], list[tuple[int, int]]]:
    """Return the device's allocator events in the order of time, and when each stretch was.

    What gloo allocates on its own thread while it carries out an operation, it frees when it is
    done, but then nothing is recorded any more: such frees are added.
    """
    found: list[AllocatorEvent] = []
    scratch: list[tuple[AllocatorEvent, int]] = []
    stretches: list[tuple[int, int]] = []
    stack: list[tuple[Any, int | None]] = [(event, None) for event in event_tree]
    while stack:
        event, operation_end_ns = stack.pop()
        fields = event.extra_fields
        if type(fields) is not _Allocation:
            name = event.name
            if name == STRETCH:
                stretches.append((event.start_time_ns, event.end_time_ns))
            elif name.startswith(OWN_THREAD_BACKENDS):
                operation_end_ns = event.end_time_ns
            stack += [(child, operation_end_ns) for child in event.children]
            continue
        where = fields.device
        if where.type != device.type or where.index not in (None, -1, device.index):
            continue
        found.append(AllocatorEvent(event.start_time_ns, fields.ptr, fields.alloc_size))
        if operation_end_ns is not None and fields.alloc_size > 0:
            scratch.append((found[-1], operation_end_ns))
    events = sorted(found + frees_of(scratch, found), key=lambda event: event.time_ns)
    return events, sorted(stretches)
