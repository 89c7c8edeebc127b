"""Transfer and wait apart: the same operation as all its ranks saw it.

An operation that synchronises its ranks cannot end before the last of them has arrived. So, with
the k-th operation of a kind and size in a step on one rank matched with the k-th on the others:
wait = last arrival - own arrival, transfer = end - last arrival. In a broadcast everybody waits for
the root alone, where it is known: one rank, or, where the ranks broadcast what each owns, the
ranks in turn. In other rooted operations and between two ranks only the
receiver waits; their traces do not name root or peer, so all of their time is transfer.

All times are on one clock: each rank's offset is taken off first.

Which of the host's c10d operators asked for which operation of a CPU backend.

Gloo queues what it is asked for and its own threads take it up, in the order of the asking; only
the order ties the annotation ``gloo:all_reduce`` to the ``c10d::allreduce_`` that asked for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from scalebench.records.measured.trace import ClockAlignment, Trace, TracedOperation
from scalebench.records.rows.steps import Straggler
from scalebench.trace.events import Events, Indices, Intervals, Kind, intervals, union
from scalebench.trace.operations.communication_kernels import kind_of

CLOCK_SLACK_NS = 1_000_000
"""A send may be annotated microseconds before its operator is; one that was asked for later than
this after it began belongs to something else."""

_ONE_ALL_REDUCE_PER_RANK = "c10d::reduce_scatter_"


def match_requests(events: Events, operations: Indices, requests: Indices) -> Indices:
    """Return the request of each operation; -1: not known.

    The k-th operation of a kind belongs to the k-th request for it. Gloo carries out a
    reduce-scatter by all-reduces, so both requests can stand behind an all-reduce.

    All are in the order of their start: ``operations`` are annotations, ``requests`` ``c10d::``
    operators.
    """
    asked_kinds = _kinds(events, requests)
    carried_out = _kinds(events, operations)
    answer = np.full(len(operations), -1, dtype=np.int64)
    for kind in set(carried_out) - {"unknown"}:
        askers: set[Kind] = {kind}
        if kind == "all_reduce" and "reduce_scatter" not in carried_out:
            askers.add("reduce_scatter")
        mine = np.flatnonzero([one == kind for one in carried_out])
        candidates = requests[np.asarray([one in askers for one in asked_kinds], dtype=bool)]
        answer[mine] = _in_order(events, operations[mine], candidates)
    return answer


def _in_order(events: Events, operations: Indices, requests: Indices) -> Indices:
    answer = np.full(len(operations), -1, dtype=np.int64)
    if len(requests) == 0:
        return answer
    # What was asked for before the trace began has no request in it.
    earliest = events.start_ns[requests[0]] - CLOCK_SLACK_NS
    asked_before = int(np.searchsorted(events.start_ns[operations], earliest))
    requests = _repeat(events, requests, len(operations) - asked_before)
    num = min(len(requests), len(operations) - asked_before)
    matched = operations[asked_before : asked_before + num]
    plausible = events.start_ns[requests[:num]] <= events.start_ns[matched] + CLOCK_SLACK_NS
    answer[asked_before : asked_before + num] = np.where(plausible, requests[:num], -1)
    return answer


def _repeat(events: Events, requests: Indices, num_operations: int) -> Indices:
    """Repeat each request that is carried out in as many operations as the group has ranks."""
    several = np.asarray(
        [events.names[events.name[i]] == _ONE_ALL_REDUCE_PER_RANK for i in requests], dtype=bool
    )
    num_several = int(several.sum())
    if num_several == 0 or num_operations <= len(requests):
        return requests
    ranks, left_over = divmod(num_operations - (len(requests) - num_several), num_several)
    return requests if left_over else np.repeat(requests, np.where(several, ranks, 1))


def _kinds(events: Events, indices: Indices) -> list[Kind]:
    return [kind_of(events.names[events.name[i]].partition(":")[2]) for i in indices]


SYNCHRONISING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")

Root = int | Literal["in turn"] | None
"""Who broadcasts: one rank; in the optimizer's phase of each step rank 0, 1, 2, … in turn, as
ZeroRedundancyOptimizer does, and otherwise rank 0; or it is not known."""

Key = tuple[int, str | None, str, int | None]
"""Step, group, kind, and the number within the group or else the bytes.

Operations with the same key are distinguished by their order; all-to-alls by nothing else, since
their splits may be uneven.
"""


@dataclass(frozen=True)
class Arrival:
    """Who came last to one operation.

    Attributes:
        rank: Whose arrival it was.
        late_s: How long after the first; seconds.
    """

    step: int
    kind: str
    rank: int
    late_s: float


@dataclass(frozen=True)
class Transfer:
    """One operation without the waiting in it.

    Attributes:
        ordinal: Which of its kind and size it was in its step.
        transfer_s: From the last arrival to the last end, seconds.
    """

    step: int
    kind: str
    num_bytes: int
    ordinal: int
    transfer_s: float


@dataclass(frozen=True)
class Matched:
    """The operations of a launch, matched over its ranks.

    Attributes:
        waiting: Rank → when it waited inside an operation for others; on the rank's own clock,
            after its trace's origin; tidy.
        waiting_along: Rank → dimension of the mesh whose group carried the operation → the same;
            None: no dimension.
        arrivals: One for every operation that was matched, in the order of time.
        mismatch: The first operation that the ranks do not have alike, in words; None: all match.
        num_alone: Operations that could be matched by their kind and were not found on all ranks
            of their group, or whose group is not known.
    """

    waiting: dict[int, Intervals] = field(default_factory=dict)
    waiting_along: dict[int, dict[str | None, Intervals]] = field(default_factory=dict)
    arrivals: list[Arrival] = field(default_factory=list)
    mismatch: str | None = None
    num_alone: int = 0


def match(
    traces: Mapping[int, Trace],
    clocks: Mapping[int, ClockAlignment] | None = None,
    root: Root = None,
) -> Matched:
    """Match the operations of a launch's ranks.

    ``clocks``: rank → how its clock stands against rank 0's; a rank without: it is the same.
    ``root``: from which rank broadcasts come.
    """
    turns = _alternating_roots(traces) if root == "in turn" else {}
    shift = {rank: shown_on_rank_0(t.origin_ns, rank, clocks or {}) for rank, t in traces.items()}
    matched, num_alone = together(traces)
    waits: dict[int, dict[str | None, list[tuple[int, int]]]] = {rank: {} for rank in traces}
    arrivals: list[tuple[int, Arrival]] = []
    for operation in matched:
        began = {rank: op.start_ns + shift[rank] for rank, op in operation.items()}
        last = max(began, key=began.__getitem__)
        awaited = operation[last]
        if len(operation) == 1:
            continue  # a group of one rank: no rank waits
        if awaited.kind == "broadcast":
            source = turns.get(id(awaited), 0) if root == "in turn" else root
            if source is None or source not in operation:
                continue
            last = source
        late_s = (began[last] - min(began.values())) / 1e9
        if awaited.kind != "broadcast" or late_s > 0:
            arrivals.append((began[last], Arrival(awaited.step, awaited.kind, last, late_s)))
        for rank, op in operation.items():
            until = min(op.start_ns + began[last] - began[rank], op.end_ns)
            waits[rank].setdefault(op.axis, []).append((op.start_ns, max(until, op.start_ns)))
    along = {
        rank: {axis: union(intervals(spans)) for axis, spans in found.items()}
        for rank, found in waits.items()
    }
    return Matched(
        waiting={rank: union(*found.values()) for rank, found in along.items()},
        waiting_along=along,
        arrivals=[arrival for _, arrival in sorted(arrivals, key=lambda pair: pair[0])],
        mismatch=first_mismatch({rank: trace.operations for rank, trace in traces.items()}),
        num_alone=num_alone,
    )


def transfers(
    traces: Mapping[int, Trace], clocks: Mapping[int, ClockAlignment] | None = None
) -> list[Transfer]:
    """Return the operations that synchronise all their ranks, those whose size is known.

    Two that are in flight at once share the link, and each lasts as long as both.
    """
    shift = {rank: shown_on_rank_0(t.origin_ns, rank, clocks or {}) for rank, t in traces.items()}
    spans = []
    for operation in together(traces)[0]:
        one = next(iter(operation.values()))
        if one.kind in SYNCHRONISING and one.num_bytes:
            began = max(op.start_ns + shift[rank] for rank, op in operation.items())
            ended = max(op.end_ns + shift[rank] for rank, op in operation.items())
            spans.append((one.step, began, ended, one.kind, one.num_bytes))
    counts: dict[tuple[int, str, int], int] = {}
    found = []
    for step, began, ended, kind, num_bytes in sorted(spans):
        ordinal = counts.get((step, kind, num_bytes), 0)
        counts[step, kind, num_bytes] = ordinal + 1
        found.append(Transfer(step, kind, num_bytes, ordinal, max(ended - began, 0) / 1e9))
    return found


def _alternating_roots(traces: Mapping[int, Trace]) -> dict[int, int]:
    """Return whose turn each broadcast of the optimizer's phase is: ``id`` of its record → rank."""
    turns: dict[int, int] = {}
    for trace in traces.values():
        seen: dict[int, int] = {}
        for op in sorted(trace.operations, key=lambda op: op.start_ns):
            if op.kind == "broadcast" and op.phase == "optimizer":
                turns[id(op)] = seen.get(op.step, 0) % len(traces)
                seen[op.step] = seen.get(op.step, 0) + 1
    return turns


def together(traces: Mapping[int, Trace]) -> tuple[list[dict[int, TracedOperation]], int]:
    """Return every operation that synchronises, as each rank of its group saw it.

    Returns:
        One entry for each operation, rank → its own record of it; and how many records have no
        counterpart on all the other ranks of their group.
    """
    by_key = {rank: _by_key(trace.operations) for rank, trace in traces.items()}
    matched: list[dict[int, TracedOperation]] = []
    num_alone = 0
    for key in sorted({key for found in by_key.values() for key in found}, key=str):
        present = {rank: found[key] for rank, found in by_key.items() if key in found}
        counts = {len(operations) for operations in present.values()}
        if len(counts) > 1 or len(present) != next(iter(present.values()))[0].group_size:
            num_alone += sum(len(operations) for operations in present.values())
            continue
        rows = zip(*present.values(), strict=True)
        matched += [dict(zip(present, row, strict=True)) for row in rows]
    return matched, num_alone


def shown_on_rank_0(time_ns: int, rank: int, clocks: Mapping[int, ClockAlignment]) -> int:
    """Return what rank 0's clock showed when this rank's showed ``time_ns``."""
    return clocks[rank].on_rank_0(time_ns) if rank in clocks else time_ns


def _by_key(operations: Sequence[TracedOperation]) -> dict[Key, list[TracedOperation]]:
    found: dict[Key, list[TracedOperation]] = {}
    for op in sorted(operations, key=lambda op: op.start_ns):
        if op.kind in (*SYNCHRONISING, "broadcast"):
            which = _size(op) if op.sequence is None else op.sequence
            found.setdefault((op.step, op.group, op.kind, which), []).append(op)
    return found


def _size(op: TracedOperation) -> int | None:
    """Return the size that all ranks know; of an all-to-all each hands in what it has to send."""
    return None if op.kind == "all_to_all" else op.num_bytes


def first_mismatch(operations: Mapping[int, Sequence[TracedOperation]]) -> str | None:
    """Say at which step ranks first differ in the number of operations of one kind; None: nowhere.

    Only operations of groups that all ranks belong to are compared: others need not be alike.
    """
    everyone = len(operations)
    counts: dict[tuple[int, str], dict[int, int]] = {}
    for rank, of_rank in operations.items():
        for op in of_rank:
            if op.kind in SYNCHRONISING and op.group_size in (None, everyone):
                tally = counts.setdefault((op.step, op.kind), dict.fromkeys(operations, 0))
                tally[rank] += 1
    for (step, kind), tally in sorted(counts.items()):
        if len(set(tally.values())) > 1:
            most, least = max(tally, key=tally.__getitem__), min(tally, key=tally.__getitem__)
            return (
                f"in traced step {step}, rank {most} has {tally[most]} {kind} where rank {least} "
                f"has {tally[least]}"
            )
    return None


def stragglers(arrivals: Sequence[Arrival]) -> list[Straggler]:
    """Return who came last how often, the most frequent first."""
    found = []
    for rank in sorted({arrival.rank for arrival in arrivals}):
        late = [arrival.late_s for arrival in arrivals if arrival.rank == rank]
        found.append(
            Straggler(
                rank=rank,
                count=len(late),
                share=len(late) / len(arrivals),
                median_late_s=float(np.median(late)),
                longest_run=_longest_run([arrival.rank == rank for arrival in arrivals]),
            )
        )
    return sorted(found, key=lambda straggler: -straggler.count)


def _longest_run(marks: Sequence[bool]) -> int:
    longest = current = 0
    for mark in marks:
        current = current + 1 if mark else 0
        longest = max(longest, current)
    return longest
