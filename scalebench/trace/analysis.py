"""How much of a rank's communication its computation hides: figures from timelines.

Unions of intervals, never sums: two collectives in flight at once cover the time once.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from scalebench.grouping import by_key
from scalebench.trace.events import (
    Intervals,
    Operation,
    Timeline,
    clip,
    intersect,
    intervals,
    length_s,
    subtract,
    union,
)


@dataclass(frozen=True)
class Share:
    """The operations of one kind, or of one phase.

    Attributes:
        count: Operations that run, in part at least, in the window.
        payload_bytes: What was handed to them, in full; None: of some the size is not known.
        total_s: Union of their intervals.
        exposed_s: The part during which nothing was computed.
        hidden_s: The rest.
    """

    name: str
    count: int
    payload_bytes: int | None
    total_s: float
    exposed_s: float
    hidden_s: float


@dataclass(frozen=True)
class Figures:
    """What one rank did with its time, or all ranks together (sums over the ranks).

    Attributes:
        window_s: Length of the window.
        comm_s: Union of all operations.
        compute_s: Union of the kernels that are no communication; on CPU of ``aten::`` operators.
        overlap_s: Both at once.
        exposed_comm_s: Communication while nothing was computed: ``comm_s − overlap_s``.
        overlap_ratio: ``1 − exposed / comm``; None without communication.
        comm_compute_ratio: ``comm / compute``; None without computation.
        copies_s: Copies and fills of GPU memory; they count as neither, and hide nothing.
        idle_s: The window without communication, computation and copies.
        kinds: By kind of operation, the longest first.
        phases: By what the rank was doing when it asked for them.
        copies_alone_s: The part of the copies during which nothing was computed or communicated.
        comm_beside_copies_s: The part of exposed communication during which memory was copied.
    """

    window_s: float
    comm_s: float
    compute_s: float
    overlap_s: float
    exposed_comm_s: float
    overlap_ratio: float | None
    comm_compute_ratio: float | None
    copies_s: float
    idle_s: float
    kinds: tuple[Share, ...] = ()
    phases: tuple[Share, ...] = ()
    copies_alone_s: float = 0.0
    comm_beside_copies_s: float = 0.0


def analyse(timeline: Timeline, within: Intervals | None = None) -> Figures:
    """Return the figures of one rank.

    ``within``: tidy set of the time to look at; None: the whole trace.
    """
    whole = union(intervals([timeline.extent])) if within is None else within
    operations = [op for op in timeline.operations if _runs_in(op, whole)]
    comm = intersect(_spans(operations), whole)
    compute = intersect(timeline.compute, whole)
    copies = intersect(timeline.copies, whole)
    exposed = subtract(comm, compute)
    exposed_s = length_s(exposed)
    comm_s, compute_s = length_s(comm), length_s(compute)
    return Figures(
        window_s=length_s(whole),
        comm_s=comm_s,
        compute_s=compute_s,
        overlap_s=length_s(intersect(comm, compute)),
        exposed_comm_s=exposed_s,
        overlap_ratio=_overlap_ratio(exposed_s, comm_s),
        comm_compute_ratio=_ratio(comm_s, compute_s),
        copies_s=length_s(copies),
        idle_s=length_s(subtract(whole, union(comm, compute, copies))),
        kinds=_shares(operations, lambda op: op.kind, whole, compute),
        phases=_shares(operations, lambda op: op.phase, whole, compute),
        copies_alone_s=length_s(subtract(copies, union(comm, compute))),
        comm_beside_copies_s=length_s(intersect(exposed, copies)),
    )


def figures_together(ranks: Sequence[Figures]) -> Figures:
    """Return the sums over several ranks, and the ratios of the sums."""

    def total(read: Callable[[Figures], float]) -> float:
        return sum(read(figures) for figures in ranks)

    comm_s, exposed_s = total(lambda f: f.comm_s), total(lambda f: f.exposed_comm_s)
    compute_s = total(lambda f: f.compute_s)
    return Figures(
        window_s=total(lambda f: f.window_s),
        comm_s=comm_s,
        compute_s=compute_s,
        overlap_s=total(lambda f: f.overlap_s),
        exposed_comm_s=exposed_s,
        overlap_ratio=_overlap_ratio(exposed_s, comm_s),
        comm_compute_ratio=_ratio(comm_s, compute_s),
        copies_s=total(lambda f: f.copies_s),
        idle_s=total(lambda f: f.idle_s),
        kinds=_summed(share for figures in ranks for share in figures.kinds),
        phases=_summed(share for figures in ranks for share in figures.phases),
        copies_alone_s=total(lambda f: f.copies_alone_s),
        comm_beside_copies_s=total(lambda f: f.comm_beside_copies_s),
    )


def _runs_in(operation: Operation, whole: Intervals) -> bool:
    if len(whole) == 1:
        return bool(operation.start_ns < whole[0, 1] and operation.end_ns > whole[0, 0])
    return len(clip(whole, operation.start_ns, operation.end_ns)) > 0


def _spans(operations: Sequence[Operation]) -> Intervals:
    return union(intervals([(op.start_ns, op.end_ns) for op in operations]))


def _shares(
    operations: Sequence[Operation],
    group_of: Callable[[Operation], str],
    whole: Intervals,
    compute: Intervals,
) -> tuple[Share, ...]:
    groups = by_key((group_of(operation), operation) for operation in operations)
    shares = [_share(name, members, whole, compute) for name, members in groups.items()]
    return _longest_first(shares)


def _share(
    name: str, operations: Sequence[Operation], whole: Intervals, compute: Intervals
) -> Share:
    spans = intersect(_spans(operations), whole)
    total_s, exposed_s = length_s(spans), length_s(subtract(spans, compute))
    return Share(
        name=name,
        count=len(operations),
        payload_bytes=_sum_if_known(op.num_bytes for op in operations),
        total_s=total_s,
        exposed_s=exposed_s,
        hidden_s=total_s - exposed_s,
    )


def _summed(shares: Iterable[Share]) -> tuple[Share, ...]:
    groups = by_key((share.name, share) for share in shares)
    return _longest_first(
        Share(
            name=name,
            count=sum(share.count for share in members),
            payload_bytes=_sum_if_known(share.payload_bytes for share in members),
            total_s=sum(share.total_s for share in members),
            exposed_s=sum(share.exposed_s for share in members),
            hidden_s=sum(share.hidden_s for share in members),
        )
        for name, members in groups.items()
    )


def _longest_first(shares: Iterable[Share]) -> tuple[Share, ...]:
    return tuple(sorted(shares, key=lambda share: (-share.total_s, share.name)))


def _sum_if_known(sizes: Iterable[int | None]) -> int | None:
    known = list(sizes)
    return None if None in known else sum(size for size in known if size is not None)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _overlap_ratio(exposed_s: float, comm_s: float) -> float | None:
    share = _ratio(exposed_s, comm_s)
    return None if share is None else 1 - share
