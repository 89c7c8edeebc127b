"""Peak memory of a rank, and what it is made of at the peak.

Allocated, reserved, device and resident are different numbers. What is allocated is told apart
by owner: the allocator's events give every allocation's address, size and time, and after each
step the storages of parameters, gradients and optimizer state give the addresses that they own.
So each category is exact at the moment of the peak, and sums with the others to it.

torch's own trackers were tried on a perceptron of known size first, and are not used
(torch 2.13): ``MemTracker`` has the right totals, but counts the temporaries of a ``foreach``
optimizer as its state (1.5 times Adam's), DDP's buckets as activations, and gradients that are
views into them as such, too; the profiler's own categories know no owner where the optimizer is
fused, and count temporaries of Adam as parameters.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from scalebench.records import Memory
from scalebench.trace.names import OWN_THREAD_BACKENDS
from scalebench.worker.process import peak_rss_bytes

Category = Literal["parameters", "gradients", "optimizer", "communication", "data", "activations"]
Phase = Literal["data", "build", "step"]
CATEGORIES: tuple[Category, ...] = (
    *("parameters", "gradients", "optimizer", "communication", "data", "activations"),
)
LET_GO_S = 2e-3
STRETCH = "scalebench: a stretch of memory"


def read_memory(device: torch.device) -> Memory:
    """Return the peaks of this process so far; CUDA counts from the start of the process."""
    if device.type == "cpu":
        return Memory(rss_bytes=peak_rss_bytes())
    free, total = torch.cuda.mem_get_info(device)
    return Memory(
        allocated_bytes=torch.cuda.max_memory_allocated(device),
        reserved_bytes=torch.cuda.max_memory_reserved(device),
        device_bytes=total - free,
        rss_bytes=peak_rss_bytes(),
    )


def allocator_retries(device: torch.device) -> int | None:
    """Return how often CUDA's allocator had to free its cache and retry so far; None on CPU."""
    if device.type == "cpu":
        return None
    return int(torch.cuda.memory_stats(device).get("num_alloc_retries", 0))


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
        rest: What is still allocated at the end and owned by nobody belongs here.
        phase: The peak may lie where training is built or takes a step, not where data are made;
            activations are those of a step.
        kept: Whether what is left at the end and owned by nobody lives on. Where nobody keeps
            anything, it was freed where the profiler did not see it.
    """

    start_ns: int
    end_ns: int
    owned: Owned
    rest: Category
    phase: Phase = "step"
    kept: bool = True


@dataclass(frozen=True)
class AllocatorEvent:
    """Memory handed out (bytes > 0) or taken back (bytes < 0) by the allocator."""

    time_ns: int
    address: int
    bytes: int


def owned_storages(
    module: torch.nn.Module, optimizer: torch.optim.Optimizer | None, device: torch.device
) -> Owned:
    """Return the storages of a module and its optimizer on a device, each once.

    Shared storages count once; of a distributed tensor the part that this rank holds counts.
    """
    owned: dict[int, Storage] = {}

    def add(tensors: Any, category: Category) -> None:
        for tensor in tensors:
            storage = _storage(tensor)
            if storage is not None and storage.device == device and storage.nbytes():
                owned.setdefault(storage.data_ptr(), Storage(storage.nbytes(), category))

    add(module.parameters(), "parameters")
    add(module.buffers(), "parameters")
    add((p.grad for p in module.parameters() if p.grad is not None), "gradients")
    if optimizer is not None:
        add(_tensors(list(optimizer.state.values())), "optimizer")
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
        memory: The peak and its categories; known after the block.
    """

    device: torch.device
    module: torch.nn.Module | None = None
    optimizer: torch.optim.Optimizer | None = None
    memory: Memory = field(default_factory=Memory)
    _ends: list[tuple[Owned, Category, Phase, bool]] = field(default_factory=list)

    @contextmanager
    def stretch(self, rest: Category, phase: Phase = "step", kept: bool = True) -> Iterator[None]:
        """Watch a stretch; outside of all stretches the peak does not count.

        Gradients are told apart stretch by stretch: a step that frees them needs one of its own.

        Args:
            rest: What remains allocated at the end, and nobody owns, belongs here.
            phase: See `Interval`.
            kept: See `Interval`.
        """
        with record_function(STRETCH):
            yield
        owned = {} if self.module is None else self._owned(self.module)
        self._ends.append((owned, rest, phase, kept))

    def _owned(self, module: torch.nn.Module) -> Owned:
        return owned_storages(module, self.optimizer, self.device)

    def read(self, event_tree: list[Any]) -> None:
        """Find the peak in the profiler's events."""
        marks = [e for e in _walk(event_tree) if e.name == STRETCH]
        marks.sort(key=lambda event: int(event.start_time_ns))
        intervals = [
            Interval(mark.start_time_ns, mark.end_time_ns, *end)
            for mark, end in zip(marks, self._ends, strict=True)
        ]
        self.memory = composition_at_peak(_allocator_events(event_tree, self.device), intervals)


@contextmanager
def watch_memory(device: torch.device) -> Iterator[MemoryWatch]:
    """Watch what the device's allocator hands out inside the block, by the profiler's events.

    What was allocated before is counted only if it turns out to be owned by the training. The
    same code serves CUDA, whose allocator reports the same events; it was not tried there.
    """
    watch = MemoryWatch(device)
    with (
        _operations_let_go_first(),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
    ):
        yield watch
    watch.read(profiler.profiler.kineto_results.experimental_event_tree())


@contextmanager
def _operations_let_go_first() -> Iterator[None]:
    """After each wait for an operation, give gloo's thread time to drop the operation's tensors.

    Whoever drops a tensor last frees it, and the profiler records only what the training's thread
    frees. Nothing is timed where memory is watched.
    """
    wait = dist.Work.wait

    def wait_and_let_go(work: Any, *arguments: Any, **options: Any) -> bool:
        done = wait(work, *arguments, **options)
        time.sleep(LET_GO_S)
        return done

    dist.Work.wait = wait_and_let_go  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        dist.Work.wait = wait  # type: ignore[method-assign]


def _walk(events: list[Any]) -> Iterator[Any]:
    """Yield all events of a tree, each before its children."""
    stack = list(reversed(events))
    while stack:
        event = stack.pop()
        yield event
        stack.extend(reversed(event.children))


def _allocator_events(event_tree: list[Any], device: torch.device) -> list[AllocatorEvent]:
    """Return the device's allocator events in the order of time.

    What gloo allocates on its own thread while it carries out an operation, it frees when it is
    done, but then nothing is recorded any more: such frees are added.
    """
    found: list[AllocatorEvent] = []
    scratch: list[tuple[AllocatorEvent, int]] = []
    stack: list[tuple[Any, int | None]] = [(event, None) for event in event_tree]
    while stack:
        event, operation_end_ns = stack.pop()
        if event.name.startswith(OWN_THREAD_BACKENDS):
            operation_end_ns = event.end_time_ns
        stack.extend((child, operation_end_ns) for child in event.children)
        if event.tag != torch._C._profiler._EventType.Allocation:
            continue
        fields = event.extra_fields
        if fields.device.type != device.type or fields.device.index not in (None, -1, device.index):
            continue
        found.append(AllocatorEvent(event.start_time_ns, fields.ptr, fields.alloc_size))
        if operation_end_ns is not None and fields.alloc_size > 0:
            scratch.append((found[-1], operation_end_ns))
    return sorted(found + _frees_of(scratch, found), key=lambda event: event.time_ns)


def _frees_of(
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

    Args:
        events: In the order of time.
        intervals: In the order of time, without overlap.
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
        phase = _phase(event.time_ns, intervals)
        if phase in ("build", "step") and sum(now.values()) > sum(peak.values()):
            peak = dict(now)
        if phase == "step":
            activations_peak = max(activations_peak, now["activations"])
    return Memory(
        allocated_bytes=sum(peak.values()),
        activations_peak_bytes=activations_peak,
        **{f"{category}_bytes": peak[category] for category in CATEGORIES},
    )


def _phase(time_ns: int, intervals: Sequence[Interval]) -> Phase | None:
    return next((i.phase for i in intervals if i.start_ns <= time_ns <= i.end_ns), None)


def _with_unseen_frees(
    events: Sequence[AllocatorEvent], intervals: Sequence[Interval]
) -> list[AllocatorEvent]:
    """Add the frees that the profiler did not see, as far as they can be known.

    A collective's buffer may be freed on the backend's own thread, where nothing is recorded. But
    an address that is handed out again was freed before; what was owned and is no longer was
    given up during the stretch, at its beginning for all we know; what is left where nobody keeps
    anything was given up by the end of the stretch; and what building leaves and
    nobody ever owns counts only until building ends: with DDP that is the buffer of its first
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
        if interval.phase == "build":
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

    An allocation belongs to whoever owned its address at the end of an interval while it lived;
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
    always: dict[Category, int] = {}
    for storage in before.values():
        always[storage.category] = always.get(storage.category, 0) + storage.bytes
    return always, categories
