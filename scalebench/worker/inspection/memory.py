"""Peak memory of a rank, and what it is made of at the peak: by the allocator's events and owners.

Allocated, reserved, device and resident are different numbers. What is allocated is divided
by owner: the allocator's events give every allocation's address, size and time, and after each
step the storages of parameters, gradients and optimizer state give the addresses that they own.
So each category is exact at the moment of the peak, and sums with the others to it. torch's own
trackers (``MemTracker``, the profiler's categories; torch 2.13) take temporaries for parameters.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.profiler import ProfilerActivity, record_function

from scalebench.grouping import totals
from scalebench.records.measured.rank import Memory
from scalebench.trace.operations.communication_kernels import OWN_THREAD_BACKENDS
from scalebench.worker.portable import quiet_profiler

Category = Literal["parameters", "gradients", "optimizer", "communication", "data", "activations"]
Phase = Literal["data", "build", "step"]
CATEGORIES: tuple[Category, ...] = (
    *("parameters", "gradients", "optimizer", "communication", "data", "activations"),
)
LET_GO_S = 2e-3
STRETCH = "scalebench: a stretch of memory"
_Allocation = torch._C._profiler._ExtraFields_Allocation


@dataclass(frozen=True)
class Storage:
    """One piece of memory that somebody owns."""

    bytes: int
    category: Category


Owned = Mapping[int, Storage]
"""Address → storage."""


@dataclass(frozen=True)
class Interval:
    """A stretch of time, and who owned what at its end.

    Attributes:
        rest: What is still allocated at the end without an owner belongs here.
        phase: The peak may lie where training is built or takes a step, not where data are made;
            activations are those of a step.
        kept: Whether what is left at the end and owned by no one lives on. Where no one keeps
            anything, it was freed where the profiler did not see it.
        keeps_built: Whether what building leaves is kept for good, though no one owns it.
    """

    start_ns: int
    end_ns: int
    owned: Owned
    rest: Category
    phase: Phase = "step"
    kept: bool = True
    keeps_built: bool = False


@dataclass(frozen=True)
class AllocatorEvent:
    """Memory handed out (bytes > 0) or taken back (bytes < 0) by the allocator."""

    time_ns: int
    address: int
    bytes: int


def frees_of(
    scratch: Sequence[tuple[AllocatorEvent, int]], events: Sequence[AllocatorEvent]
) -> list[AllocatorEvent]:
    """Return the frees of what was allocated for an operation and not seen freed by its end."""
    addresses = {allocation.address for allocation, _ in scratch}
    touched: dict[int, list[int]] = {address: [] for address in addresses}
    for event in events:
        if event.address in addresses:
            touched[event.address].append(event.time_ns)
    return [
        _free(allocation, end_ns)
        for allocation, end_ns in scratch
        if not any(allocation.time_ns < at <= end_ns for at in touched[allocation.address])
    ]


def composition_at_peak(events: Sequence[AllocatorEvent], intervals: Sequence[Interval]) -> Memory:
    """Return the largest sum of live allocations while training is built or steps, by owner.

    Both are in the order of time; intervals do not overlap.
    """
    events = _with_unseen_frees(events, intervals)
    always, categories = _attribute(events, intervals)
    live: dict[int, int] = {}
    now = dict.fromkeys(CATEGORIES, 0) | always
    peak, activations_peak = dict(now), 0
    for number, event in enumerate(events):
        if event.bytes > 0:
            live[event.address] = number
            now[categories[number]] += event.bytes
        elif (born := live.pop(event.address, None)) is not None:
            now[categories[born]] -= events[born].bytes
        at_ns = event.time_ns
        phase = next((i.phase for i in intervals if i.start_ns <= at_ns <= i.end_ns), None)
        if phase in ("build", "step") and sum(now.values()) > sum(peak.values()):
            peak = dict(now)
        if phase == "step":
            activations_peak = max(activations_peak, now["activations"])
    return Memory(
        allocated_bytes=sum(peak.values()),
        activations_peak_bytes=activations_peak,
        **{f"{category}_bytes": peak[category] for category in CATEGORIES},
    )


def _with_unseen_frees(
    events: Sequence[AllocatorEvent], intervals: Sequence[Interval]
) -> list[AllocatorEvent]:
    """Add the frees that the profiler did not see, as far as they can be known.

    A collective's buffer may be freed on the backend's own thread, where nothing is recorded. But
    an address that is handed out again was freed before; what was owned and is no longer was
    given up during the stretch, at its beginning for all we know; what is left where no one keeps
    anything was given up by the end of the stretch; and what building leaves and
    no one ever owns counts only until building ends: with DDP that is the buffer of its first
    broadcast, or the first buckets, which it replaces in the second step.
    """
    known = list(events)
    live: dict[int, AllocatorEvent] = {}
    owned: dict[int, AllocatorEvent] = {}
    left_by_building: dict[int, AllocatorEvent] = {}
    position = 0
    for interval in intervals:
        while position < len(events) and events[position].time_ns <= interval.end_ns:
            event = events[position]
            former = live.pop(event.address, None)
            if event.bytes > 0:
                if former is not None:
                    known.append(_free(former, event.time_ns - 1))
                live[event.address] = event
            position += 1
        for address, allocation in owned.items():
            if live.get(address) is allocation and address not in interval.owned:
                known.append(_free(live.pop(address), interval.start_ns))
        if not interval.kept:
            left = [
                allocation
                for address, allocation in live.items()
                if address not in interval.owned and allocation.time_ns >= interval.start_ns
            ]
            known += [_free(live.pop(one.address), interval.end_ns) for one in left]
        owned = {a: allocation for a, allocation in live.items() if a in interval.owned}
        left_by_building = {
            address: allocation
            for address, allocation in left_by_building.items()
            if owned.get(address) is not allocation
        }
        if interval.phase == "build" and not interval.keeps_built:
            left_by_building |= {
                address: allocation
                for address, allocation in live.items()
                if address not in owned and allocation.time_ns >= interval.start_ns
            }
            built_ns = interval.end_ns
    known += [_free(allocation, built_ns + 1) for allocation in left_by_building.values()]
    return sorted(known, key=lambda event: event.time_ns)


def _free(allocation: AllocatorEvent, time_ns: int) -> AllocatorEvent:
    return AllocatorEvent(time_ns, allocation.address, -allocation.bytes)


def _attribute(
    events: Sequence[AllocatorEvent], intervals: Sequence[Interval]
) -> tuple[dict[Category, int], list[Category]]:
    """Return what was owned but allocated before the events, and each event's owner.

    An allocation belongs to the owner of its address at the end of an interval while it lived;
    an address that is handed out again is another allocation.
    """
    categories: list[Category] = ["activations"] * len(events)
    live: dict[int, int] = {}
    before: dict[int, Storage] = {}
    seen: set[int] = set()
    upcoming = iter(events)
    event = next(upcoming, None)
    number = 0
    for interval in intervals:
        while event is not None and event.time_ns <= interval.end_ns:
            if event.bytes > 0:
                live[event.address] = number
                seen.add(event.address)
            else:
                live.pop(event.address, None)
            event, number = next(upcoming, None), number + 1
        for address, born in live.items():
            if address in interval.owned:
                categories[born] = interval.owned[address].category
            elif categories[born] == "activations":
                categories[born] = interval.rest
        before |= {a: s for a, s in interval.owned.items() if a not in live and a not in seen}
    return totals((kept.category, kept.bytes) for kept in before.values()), categories


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
