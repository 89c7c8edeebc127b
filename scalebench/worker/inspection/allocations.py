"""Whose memory it was at the peak: arithmetic on the allocator's events and on who owned what."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scalebench.grouping import totals
from scalebench.records.measured.rank import Memory

Category = Literal["parameters", "gradients", "optimizer", "communication", "data", "activations"]
Phase = Literal["data", "build", "step"]
CATEGORIES: tuple[Category, ...] = (
    *("parameters", "gradients", "optimizer", "communication", "data", "activations"),
)


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
