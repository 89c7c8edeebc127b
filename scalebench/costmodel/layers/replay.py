"""Replay a step with communication in it: who waits for what, on a link that does one at a time.

A step is a computation that now and then asks for an operation, and at some later point cannot
go on without its result. Between the two the link works during the computation: what of it is
not hidden is the time by which the step grows. A bucket starts when it is ready and the link is
free; the step ends when the last bucket has.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple


class CommRequest(NamedTuple):
    """One operation that a step asks for.

    Attributes:
        op: Operation, as `scalebench.costmodel.links.laws` names them.
        size_bytes: Full size D, as nccl-tests counts it.
        ready_s: How far the computation has come when it asks, seconds of computation.
        needed_s: How far it comes before it needs the result; at least ``ready_s``.
        num_ranks: Ranks that take part; None: all.
        axis: Along which dimension of a mesh; None: not told.
    """

    op: str
    size_bytes: int
    ready_s: float
    needed_s: float
    num_ranks: int | None = None
    axis: str | None = None


@dataclass(frozen=True)
class Replayed:
    """A step as it would go.

    Attributes:
        step_s: From its beginning to its end, seconds.
        stalled_s: The part of it in which the computation waits for the link.
        spans_s: When each operation would run: (start, end), in the order of the requests.
    """

    step_s: float
    stalled_s: float
    spans_s: tuple[tuple[float, float], ...]


def replay(
    requests: Sequence[CommRequest], takes_s: Sequence[float], computing_s: float
) -> Replayed:
    """Replay a step.

    Args:
        requests: In the order in which the link is asked for them: by ``ready_s``.
        takes_s: What each of them takes on the free link, seconds.
        computing_s: The step's computation, all of it, seconds.

    Raises:
        ValueError: A request is needed before it is asked for, or they are not in order.
    """
    _check(requests, computing_s)
    stalled = free = 0.0
    spans: list[tuple[float, float]] = []
    waiting: list[tuple[float, float]] = []  # heap of (needed, end) of what was asked for
    for request, takes in zip(requests, takes_s, strict=True):
        stalled = _catch_up(waiting, request.ready_s, stalled)
        start = max(request.ready_s + stalled, free)
        free = start + takes
        spans.append((start, free))
        heappush(waiting, (request.needed_s, free))
    stalled = _catch_up(waiting, computing_s, stalled)
    return Replayed(computing_s + stalled, stalled, tuple(spans))


def _catch_up(waiting: list[tuple[float, float]], until_s: float, stalled: float) -> float:
    """Compute up to ``until_s``, waiting for what is needed on the way; return all stalls."""
    while waiting and waiting[0][0] <= until_s:
        needed, end = heappop(waiting)
        stalled = max(stalled, end - needed)
    return stalled


def _check(requests: Sequence[CommRequest], computing_s: float) -> None:
    reached = 0.0
    for request in requests:
        if not reached <= request.ready_s <= request.needed_s <= computing_s:
            raise ValueError(f"{request} does not fit into a step of {computing_s} s in order")
        reached = request.ready_s
