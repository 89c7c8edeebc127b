"""Which of the host's c10d operators asked for which operation of a CPU backend.

Gloo queues what it is asked for and its own threads take it up, in the order of the asking; only
the order ties the annotation ``gloo:all_reduce`` to the ``c10d::allreduce_`` that asked for it.
"""

import numpy as np

from scalebench.trace.events import Events
from scalebench.trace.names import kind_of
from scalebench.trace.spans import Indices
from scalebench.trace.timeline import Kind

CLOCK_SLACK_NS = 1_000_000
"""A send may be annotated microseconds before its operator is; one that was asked for later than
this after it began belongs to something else."""

_ONE_ALL_REDUCE_PER_RANK = "c10d::reduce_scatter_"


def match_requests(events: Events, operations: Indices, requests: Indices) -> Indices:
    """Return the request of each operation; -1: not known.

    The k-th operation of a kind belongs to the k-th request for it. Gloo carries out a
    reduce-scatter by all-reduces, so both requests can stand behind an all-reduce.

    Args:
        events: The rank's.
        operations: Annotations in the order of their start, shape [n].
        requests: ``c10d::`` operators in the order of their start.
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
